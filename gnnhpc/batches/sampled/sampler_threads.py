"""Threads of this process that sample mini-batches in advance with our sampler."""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Iterator
from dataclasses import replace

from gnnhpc.batches.batch import BatchPlan
from gnnhpc.batches.prefetch import Ring, prefetched
from gnnhpc.batches.sampled.neighbor_sampler import NeighborSampler
from gnnhpc.batches.sampled.placement import Features
from gnnhpc.batches.sampled.training_samples import (
    RequestedNodes,
    SampledChunks,
    TrainingSamples,
    edges_of,
)
from gnnhpc.batches.shuffle import Shares
from gnnhpc.core.errors import InputError
from gnnhpc.experiment.sampling import Sampling
from gnnhpc.graphs.blocks import GraphChunk
from gnnhpc.graphs.device_copies import wait_for
from gnnhpc.kernels.compile import kernel_status
from gnnhpc.kernels.sample_neighbors import FreshMemory, Memory, compute_alone, is_here


def check_compiled() -> None:
    """Compile the sampler; raises InputError where it cannot be compiled."""
    if not is_here():
        found = f"ours ({kernel_status('sample_neighbors')})"
        raise InputError("sampling", "sampler", found, "a C++ compiler, as g++")


class SamplerThreads:
    """Samples the neighbours that `samples` request, and gathers their `features`.

    With `on_device` the graph's edges lie on the device: the thread that takes a mini-batch samples
    it, as the device has no time to sample in advance.
    """

    def __init__(
        self,
        samples: TrainingSamples,
        sampling: Sampling,
        plan: BatchPlan,
        features: Features,
        *,
        on_device: bool,
    ) -> None:
        self._samples, self._plan, self._features = samples, plan, features
        self._on_device, self._workers = on_device, 0 if on_device else sampling.workers
        self._semantics = sampling.semantics
        graph = samples.graph
        edges, edge_weight = None, graph.edge_weight
        if sampling.inductive:
            edges = graph.in_edges.among(graph.masks["train"])
            if edge_weight is not None:
                edge_weight = edge_weight[graph.in_edges.alive(graph.masks["train"])]
        first = NeighborSampler(
            graph,
            sampling.fanouts,
            plan.experiment.seed,
            semantics=sampling.semantics,
            edges=edges,
            edge_weight=edge_weight,
            device=plan.mesh.device if on_device else None,
        )
        self._samplers: queue.SimpleQueue[NeighborSampler] = queue.SimpleQueue()
        for sampler in (first, *(first.another() for _ in range(1, self._workers))):
            self._samplers.put(sampler)

    @contextlib.contextmanager
    def open(self, shares: Shares, steps: range) -> Iterator[Iterator[SampledChunks]]:
        # The loop holds one mini-batch, an engine the one before, and each thread makes one.
        ring = Ring(self._workers + 3, pinned=self._plan.mesh.device.type == "cuda")

        def sample(step: int) -> SampledChunks:
            sampler = self._samplers.get()
            try:
                return self._sample(sampler, shares, step, ring)
            finally:
                self._samplers.put(sampler)

        with prefetched(sample, steps, self._workers, compute_alone) as sampled:
            yield sampled

    def _sample(
        self, sampler: NeighborSampler, shares: Shares, step: int, ring: Ring
    ) -> SampledChunks:
        share = shares.of_step(step)
        device = self._plan.mesh.device
        if self._on_device:
            wait_for(device)
        began_s = time.perf_counter()
        memory = FreshMemory(device) if self._on_device else ring.lend()
        requested = self._samples.requested(share)
        chunks = tuple(_chunk(sampler, each, step, memory) for each in requested)
        if self._on_device:
            wait_for(device)
        sampled_s = time.perf_counter()
        is_first = self._plan.mesh.is_first
        inputs = self._features.gathered(chunks, memory) if is_first else ()
        gather_s = time.perf_counter() - sampled_s
        edges = edges_of(chunks, self._semantics)
        return SampledChunks(share, chunks, edges, sampled_s - began_s, inputs, gather_s)


def _chunk(
    sampler: NeighborSampler, requested: RequestedNodes, step: int, memory: Memory
) -> GraphChunk:
    chunk = sampler.chunk(requested.nodes, step, requested.without, memory=memory)
    if requested.targets is None:
        return chunk
    return replace(chunk, targets={"train": requested.targets})
