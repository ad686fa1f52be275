"""Samples mini-batches of a graph: some of its nodes, and neighbours of these for each layer.

A sampled mini-batch is a chunk with a halo in which each node keeps a few of its edges. Random
numbers are keyed by seed, step, layer and node, so a node has the same neighbours whichever other
nodes its mini-batch has.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from gnnhpc.experiment.sampling import Semantics
from gnnhpc.graphs.blocks import Block, GraphChunk, Transpose, sorted_by_source
from gnnhpc.graphs.graph import Graph, block_weights
from gnnhpc.kernels.dispatch import triton_runs
from gnnhpc.kernels.sample_neighbors import FRESH, Drawn, Layer, Memory, Sampler, by_source
from gnnhpc.kernels.torch.torch_sampler import TorchSampler


@dataclass(frozen=True)
class SampledBlock(Block):
    """A block of one step, whose edges are sorted by source in one pass."""

    memory: Memory = field(default=FRESH, repr=False, compare=False)
    """The memory of its tensors, and of its edges by source."""

    @cached_property
    def transpose(self) -> Transpose:
        if self.source.device.type != "cpu":
            return sorted_by_source(self)
        drawn = Drawn(self.indptr, self.source, self.target, self.edge, self.rows_in)
        indptr, edge, target = by_source(drawn, memory=self.memory)
        return Transpose(indptr, edge, target)


class NeighborSampler:
    """Samples mini-batches of one graph for a model with as many hops as there are `fanouts`.

    `fanouts` are the most neighbours of a node, from the seeds outward. Mini-batches do not depend
    on torch's number of threads. One thread at a time may use a sampler. With a `device` the edges
    are copied there and sampled there, by Triton's programs where they run, with the same result
    bit for bit.
    """

    def __init__(
        self,
        graph: Graph,
        fanouts: Sequence[int],
        seed: int,
        *,
        semantics: Semantics = "resample",
        device: torch.device | None = None,
    ) -> None:
        self.graph, self.fanouts, self.seed = graph, tuple(fanouts), seed
        self.semantics = semantics
        edges = graph.in_edges
        self._sampler: Sampler | TorchSampler
        if device is None:
            self._sampler = Sampler(edges.indptr, edges.source)
        else:
            self._sampler = _device_sampler(edges.indptr.to(device), edges.source.to(device))
        self._degree = self._sampler.indptr.diff()
        self._edge_weight = graph.edge_weight_on(self.indptr.device)
        weighted = graph.weighted_degrees
        self._weighted_degree = None if weighted is None else weighted.to(self.indptr.device)

    def another(self) -> NeighborSampler:
        """A sampler with the same results for another thread; the graph is shared."""
        other = copy.copy(self)
        other._sampler = self._sampler.another()
        return other

    @property
    def code(self) -> str:
        """The code that samples: "c++", "triton" or "torch"."""
        return self._sampler.code

    @property
    def indptr(self) -> Tensor:
        """int64 [nodes + 1]: the place of each node's first edge."""
        return self._sampler.indptr

    def chunk(
        self,
        seeds: Tensor,
        step: int,
        without: Tensor | None = None,
        targets: dict[str, Tensor] | None = None,
        *,
        memory: Memory = FRESH,
    ) -> GraphChunk:
        """Sample the mini-batch of these nodes, int64 [batch] ascending, which are on the host.

        The edges of the numbers `without`, int64 [n] ascending, are left out, also from `degree`,
        which else counts the edges of the whole graph. `targets` are the chunk's, by default the
        labels of the nodes in all splits. Rows and blocks lie in `memory`, on the device of the
        edges.
        """
        self._sampler.begin(seeds, without)
        rows, blocks = [len(seeds)], []
        for hop, fanout in enumerate(self.fanouts):
            number = hop if self.semantics == "resample" else 0
            layer = Layer(fanout, self.seed, step, number)
            drawn = self._sampler.draw(layer, memory)
            rows.append(drawn.rows_in)
            own = (drawn.indptr, drawn.source, drawn.target, drawn.edge)
            weights = block_weights(self._edge_weight, drawn.edge)
            blocks.append(SampledBlock(*own, drawn.rows_in, weights, memory))
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
            targets=self.graph.targets(seeds) if targets is None else targets,
            own=rows[0],
            sampled=True,
            weighted_degree=None if self._weighted_degree is None else self._weighted_degree[nodes],
        )


def _device_sampler(indptr: Tensor, columns: Tensor) -> TorchSampler:
    if not triton_runs():
        return TorchSampler(indptr, columns)
    from gnnhpc.kernels.triton_sampler import TritonSampler

    return TritonSampler(indptr, columns)
