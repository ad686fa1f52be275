"""Mini-batches drawn by our own sampler, by threads of this process."""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Iterator
from dataclasses import replace

from gnnhpc.batches.plan import BatchPlan
from gnnhpc.batches.prefetch import Ring, prefetched
from gnnhpc.batches.sampled.draws import Drawn, edges_of
from gnnhpc.batches.sampled.features import Features
from gnnhpc.batches.sampled.graph_sampler import GraphSampler
from gnnhpc.batches.sampled.learnt import Asked, Learnt
from gnnhpc.batches.shuffle import Shares
from gnnhpc.core.errors import InputError
from gnnhpc.experiment.sampling import Sampling
from gnnhpc.graphs.blocks import GraphChunk
from gnnhpc.graphs.moving import wait_for
from gnnhpc.kernels.compile import kernel_status
from gnnhpc.kernels.sample_neighbors import FreshMemory, Memory, compute_alone, is_here


def check_is_here() -> None:
    """Raises InputError where the sampler cannot be compiled.

    It is compiled here, so that it is among the kernels that this rank is known by.
    """
    if not is_here():
        found = f"ours ({kernel_status('sample_neighbors')})"
        raise InputError("sampling", "sampler", found, "a C++ compiler, as g++")


class OwnDraws:
    """`features` are those of the graph that `learnt` is of.

    `on_device` puts the graph's edges there too: they are drawn when a mini-batch is taken, by
    the thread that takes it, as the device has no time to draw in advance.
    """

    def __init__(
        self,
        learnt: Learnt,
        sampling: Sampling,
        seed: int,
        plan: BatchPlan,
        features: Features,
        *,
        on_device: bool,
    ) -> None:
        self._learnt, self._plan, self._features = learnt, plan, features
        self._on_device, self._workers = on_device, 0 if on_device else sampling.workers
        self._semantics = sampling.semantics
        graph = learnt.graph
        first = GraphSampler(
            graph,
            sampling.fanouts,
            seed,
            semantics=sampling.semantics,
            replace=sampling.replace,
            edges=graph.in_edges.among(graph.masks["train"]) if sampling.inductive else None,
            device=plan.mesh.device if on_device else None,
        )
        self._samplers: queue.SimpleQueue[GraphSampler] = queue.SimpleQueue()
        for sampler in (first, *(first.another() for _ in range(1, self._workers))):
            self._samplers.put(sampler)

    @contextlib.contextmanager
    def open(self, shares: Shares, steps: range) -> Iterator[Iterator[Drawn]]:
        # The next one is drawn while the loop holds the last, and an engine the one before; each
        # thread is one more ahead.
        pinned = self._plan.mesh.device.type == "cuda"
        ring = Ring(self._workers + 3, pinned=pinned)

        def draw(step: int) -> Drawn:
            sampler = self._samplers.get()
            try:
                return self._draw(sampler, shares, step, ring)
            finally:
                self._samplers.put(sampler)

        with prefetched(draw, steps, self._workers, compute_alone) as drawn:
            yield drawn

    def _draw(self, sampler: GraphSampler, shares: Shares, step: int, ring: Ring) -> Drawn:
        share = shares.of_step(step)
        device = self._plan.mesh.device
        if self._on_device:
            wait_for(device)
        began_s = time.perf_counter()
        memory = FreshMemory(device) if self._on_device else ring.lend()
        all_asked = self._learnt.asked(share)
        chunks = tuple(_chunk(sampler, asked, step, memory) for asked in all_asked)
        if self._on_device:
            wait_for(device)
        sampled_s = time.perf_counter()
        is_first = self._plan.mesh.is_first
        inputs = self._features.gathered(chunks, memory) if is_first else ()
        gather_s = time.perf_counter() - sampled_s
        edges = edges_of(chunks, self._semantics)
        return Drawn(share, chunks, edges, sampled_s - began_s, inputs, gather_s)


def _chunk(sampler: GraphSampler, asked: Asked, step: int, memory: Memory) -> GraphChunk:
    chunk = sampler.chunk(asked.nodes, step, asked.without, memory=memory)
    if asked.targets is None:
        return chunk
    return replace(chunk, targets={"train": asked.targets})
