"""Threads of this process that sample mini-batches in advance with our sampler."""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Iterator

import torch

from gnnhpc.batches.batch import BatchPlan, Inputs, Loading
from gnnhpc.batches.graph_batch import crc32
from gnnhpc.batches.prefetch import Ring, prefetched
from gnnhpc.batches.sampled.neighbor_sampler import NeighborSampler
from gnnhpc.batches.sampled.placement import Features
from gnnhpc.batches.sampled.training_samples import SampledChunks, TrainingSamples, edges_of
from gnnhpc.batches.shuffle import Shares
from gnnhpc.core.errors import InputError
from gnnhpc.experiment.sampling import Sampling
from gnnhpc.graphs.blocks import GraphChunk
from gnnhpc.graphs.device_copies import wait_for
from gnnhpc.graphs.graph import Graph
from gnnhpc.kernels.compile import kernel_status
from gnnhpc.kernels.sample_neighbors import FreshMemory, Memory, compute_alone, is_here


def check_compiled() -> None:
    """Compile the sampler; raises InputError where it cannot be compiled."""
    if not is_here():
        found = f"ours ({kernel_status('sample_neighbors')})"
        raise InputError("sampling", "sampler", found, "a C++ compiler, as g++")


class SamplerThreads:
    """Samples the neighbours in `graph` that `samples` request, and gathers their `features`.

    With `on_device` the graph's edges and features lie on the device: one thread at most samples
    and gathers there, on a stream beside that of the steps.
    """

    def __init__(
        self,
        samples: TrainingSamples,
        graph: Graph,
        sampling: Sampling,
        plan: BatchPlan,
        features: Features,
        *,
        on_device: bool,
    ) -> None:
        self._samples, self._plan, self._features = samples, plan, features
        self._on_device = on_device
        self._workers = min(sampling.workers, 1) if on_device else sampling.workers
        device = plan.mesh.device
        beside = on_device and self._workers > 0 and device.type == "cuda"
        # Its many small kernels would each wait for a large one of the step otherwise.
        self._stream = torch.cuda.Stream(device, priority=-1) if beside else None
        """The stream of the thread that samples on a device ahead of the steps."""
        self._semantics = sampling.semantics
        first = NeighborSampler(
            graph,
            sampling.fanouts,
            plan.experiment.seed,
            semantics=sampling.semantics,
            device=device if on_device else None,
        )
        self._code = first.code
        self._samplers: queue.SimpleQueue[NeighborSampler] = queue.SimpleQueue()
        for sampler in (first, *(first.another() for _ in range(1, self._workers))):
            self._samplers.put(sampler)

    @contextlib.contextmanager
    def open(self, shares: Shares, steps: range) -> Iterator[Iterator[SampledChunks]]:
        # The loop holds one mini-batch, an engine the one before, and each thread makes one.
        device = self._plan.mesh.device
        ring = Ring(self._workers + 3, pinned=device.type == "cuda")
        if self._stream is not None:
            # The graph and its features were copied on the current stream.
            self._stream.wait_stream(torch.cuda.current_stream(device))

        def sample(step: int) -> SampledChunks:
            sampler = self._samplers.get()
            try:
                with self._beside_steps():
                    return self._sample(sampler, shares, step, ring)
            finally:
                self._samplers.put(sampler)

        with prefetched(sample, steps, self._workers, compute_alone) as sampled:
            yield map(self._taken, sampled)

    def metadata(self) -> dict[str, str]:
        where = "device" if self._on_device else "host"
        return {"sampled_on": where, "sampled_by": self._code}

    def _beside_steps(self) -> contextlib.AbstractContextManager[object]:
        """Within it the calling thread's work on the device goes to the sampler's stream."""
        if self._stream is None:
            return contextlib.nullcontext()
        return torch.cuda.stream(self._stream)

    def _taken(self, sampled: SampledChunks) -> SampledChunks:
        """A mini-batch of the other stream, whose memory is not lent there again until the current
        stream has used it. There is nothing to wait for: the thread has waited for its stream."""
        if self._stream is not None:
            current = torch.cuda.current_stream(self._plan.mesh.device)
            for tensor in sampled.tensors():
                tensor.record_stream(current)
        return sampled

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
        chunks = tuple(
            sampler.chunk(each.nodes, step, each.without, {"train": each.targets}, memory=memory)
            for each in requested
        )
        checksum = crc32(x for each in requested for x in (each.nodes, each.targets))
        edges = edges_of(chunks, self._semantics)
        if self._on_device:
            chunks = tuple(chunk.to(device) for chunk in chunks)
            wait_for(device)
        sampled_s = time.perf_counter()
        inputs = self._inputs(chunks, memory)
        if self._on_device:
            wait_for(device)
        loading = Loading(sampled_s - began_s, time.perf_counter() - sampled_s, edges)
        return SampledChunks(share, chunks, checksum, loading, inputs)

    def _inputs(self, chunks: tuple[GraphChunk, ...], memory: Memory) -> list[Inputs] | None:
        """The features of these chunks; None where the step gathers them."""
        if not self._plan.mesh.is_first:
            return []
        if self._features.where == "device" and not self._on_device:
            return None
        return self._features.gathered(chunks, memory)
