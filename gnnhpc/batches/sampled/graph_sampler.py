"""Mini-batches of a graph: some of its nodes, and for each layer neighbours drawn for those before.

A sampled mini-batch is a chunk with a halo, of which each node keeps but a few of its edges. Every
draw is keyed by seed, step, layer and node, so that batches drawn apart hold for a node what one
batch of all of them would hold.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from gnnhpc.experiment.sampling import Semantics
from gnnhpc.graphs.blocks import Block, FullGraph, GraphChunk, Transpose, sorted_by_source
from gnnhpc.graphs.graph import Graph
from gnnhpc.graphs.in_edges import InEdges
from gnnhpc.kernels.sample_neighbors import FRESH, Drawn, Layer, Memory, Sampler, by_source
from gnnhpc.kernels.torch.torch_sampler import TorchSampler


@dataclass(frozen=True)
class SampledBlock(Block):
    """A block whose edges are sorted by source in one pass; each lives for one step."""

    memory: Memory = field(default=FRESH, repr=False, compare=False)
    """Where it lies, and its edges by source will."""

    @cached_property
    def transpose(self) -> Transpose:
        if self.source.device.type != "cpu":
            return sorted_by_source(self)
        drawn = Drawn(self.indptr, self.source, self.edge, self.rows_in)
        indptr, edge, target = by_source(drawn, memory=self.memory)
        return Transpose(indptr, edge, target)


class GraphSampler:
    """Draws mini-batches of one graph for a model with as many hops as there are `fanouts`.

    `fanouts` are the most neighbours of a node, from the seeds outward. A draw takes as many
    `threads` as torch, if not told; mini-batches do not depend on them. Any one thread at a time
    may draw. `edges` are others than the graph's, by which then all edges are numbered. With a
    `device` the edges are put there and drawn there in torch, bit for bit the same.
    """

    def __init__(
        self,
        graph: Graph,
        fanouts: Sequence[int],
        seed: int,
        *,
        semantics: Semantics = "resample",
        replace: bool = False,
        threads: int | None = None,
        edges: InEdges | None = None,
        device: torch.device | None = None,
    ) -> None:
        self.graph, self.fanouts, self.seed = graph, tuple(fanouts), seed
        self.semantics, self.replace = semantics, replace
        edges = edges or graph.in_edges
        self._sampler: Sampler | TorchSampler
        if device is None:
            self._sampler = Sampler(edges.indptr, edges.source, threads=threads)
        else:
            self._sampler = TorchSampler(edges.indptr.to(device), edges.source.to(device))
        self._degree = self._sampler.indptr.diff()
        self._full = FullGraph.of(graph, edges=len(edges.source))

    def another(self) -> GraphSampler:
        """One that draws the same, for another thread; the graph is shared."""
        other = copy.copy(self)
        other._sampler = self._sampler.another()
        return other

    def whole(self) -> GraphSampler:
        """One that takes all neighbours of a node, for a single layer; the graph is shared."""
        other = self.another()
        other.fanouts = (max(int(self._degree.max()), 1),)
        other.semantics, other.replace = "resample", False
        return other

    @property
    def indptr(self) -> Tensor:
        """int64 [nodes + 1]: where each node's edges begin."""
        return self._sampler.indptr

    def chunk(
        self,
        seeds: Tensor,
        step: int,
        without: Tensor | None = None,
        *,
        memory: Memory = FRESH,
    ) -> GraphChunk:
        """The mini-batch of these nodes, int64 [batch], none twice; its rows have them ascending.

        It is drawn from the graph without the edges of the numbers `without`, int64 [n] ascending.
        `degree` is of the whole graph, less those. Rows and blocks lie in `memory`, which is on the
        device of the edges.
        """
        self._sampler.begin(seeds, without)
        rows, blocks = [len(seeds)], []
        for hop, fanout in enumerate(self.fanouts):
            number = hop if self.semantics == "resample" else 0
            layer = Layer(fanout, self.seed, step, number, self.replace)
            drawn = self._sampler.draw(layer, memory)
            rows.append(drawn.rows_in)
            target = self._sampler.targets(drawn, memory)
            own = (drawn.indptr, drawn.source, target, drawn.edge)
            blocks.append(SampledBlock(*own, drawn.rows_in, memory))
        nodes = memory.empty(rows[-1], torch.int64).copy_(self._sampler.nodes)
        degree = memory.empty(rows[-1], torch.int64)
        torch.index_select(self._degree, 0, nodes, out=degree).add_(1)
        if without is not None:
            without = without.to(self.indptr.device)
            into = torch.searchsorted(self.indptr, without, right=True) - 1
            into, left_out = into.unique(return_counts=True)
            less = torch.zeros_like(self._degree)
            less[into] = left_out
            degree -= less[nodes]
        return GraphChunk(
            nodes=nodes,
            rows=tuple(rows[::-1]),
            blocks=tuple(blocks[::-1]),
            degree=degree,
            targets=self.graph.targets(nodes[: rows[0]].cpu()),
            own=rows[0],
            full=self._full,
            sampled=True,
        )
