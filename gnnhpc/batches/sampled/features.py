"""The features of a mini-batch's rows, from where the graph's lie to where the model computes."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from gnnhpc.batches.batch import Inputs
from gnnhpc.batches.plan import BatchPlan
from gnnhpc.batches.sampled.draws import gathered
from gnnhpc.batches.sampled.placement import Where
from gnnhpc.graphs.blocks import GraphChunk
from gnnhpc.graphs.graph import Graph
from gnnhpc.graphs.moving import moved, wait_for
from gnnhpc.kernels.sample_neighbors import FRESH, Memory


class Features:
    """Those of one graph, which are put on the device here if they are to lie there.

    They are kept and moved as they are stored, half precision too, and computed with in the run's.
    """

    def __init__(self, graph: Graph, plan: BatchPlan, where: Where) -> None:
        self._graph, self._plan, self.where = graph, plan, where
        self._there: Tensor | None = None
        if where == "device" and plan.mesh.is_first:
            self._there = graph.features.to(plan.mesh.device)

    def gathered(
        self, chunks: tuple[GraphChunk, ...], memory: Memory = FRESH
    ) -> tuple[Inputs, ...] | None:
        """In the host's memory, by any thread; None where they are on the device."""
        if self.where == "device":
            return None
        if self.where == "host":
            return gathered(self._graph, chunks, self._plan)
        return tuple(self._copied(chunk.nodes, memory) for chunk in chunks)

    def taken(
        self, drawn: tuple[GraphChunk, ...], chunks: Sequence[GraphChunk]
    ) -> tuple[list[Inputs | None], float]:
        """The features of chunks that were `drawn` and are on the device as `chunks`, and the
        seconds of copying them together, which on a device end when the device is done.

        Stages after the first have None.
        """
        mesh = self._plan.mesh
        wait_for(mesh.device)
        began_s = time.perf_counter()
        inputs = self.gathered(drawn) if mesh.is_first else ()
        selected: list[Inputs | None] = []
        if inputs is None:
            selected = [*self.on_device(chunks, None)]
            wait_for(mesh.device)
        gather_s = time.perf_counter() - began_s
        if not mesh.is_first:
            return [None] * len(chunks), gather_s
        return selected or [*self.on_device(chunks, inputs)], gather_s

    def _copied(self, nodes: Tensor, memory: Memory) -> Tensor:
        features = self._graph.features
        width = features.shape[1]
        out = memory.empty(len(nodes) * width, features.dtype).view(len(nodes), width)
        return torch.index_select(features, 0, nodes, out=out)

    def on_device(
        self, chunks: Sequence[GraphChunk], inputs: Sequence[Inputs] | None
    ) -> list[Inputs]:
        """As the model takes them, of chunks that are there and what was `gathered` for them."""
        if inputs is None:
            assert self._there is not None
            return [
                self._there.index_select(0, chunk.nodes).to(self._plan.dtype) for chunk in chunks
            ]
        device = self._plan.mesh.device
        return [
            moved(x, device).to(self._plan.dtype) if isinstance(x, Tensor) else x.to(device)
            for x in inputs
        ]
