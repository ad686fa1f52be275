"""A whole graph's layers computed some rows at a time, so that its edges are never all in memory.

Layer by layer, all nodes' activations go in and all come out; of a row's neighbours none is left
out. Replicas compute a share of the rows each, and exchange them after every layer but the last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from gnnhpc.graphs.blocks import GraphChunk
from gnnhpc.graphs.features import Rows, take_rows

EDGES_AT_ONCE = 8_000_000
"""Into the rows that are computed together: three arrays of 64 MB, and one copy of their inputs."""

Layer = Callable[[Rows, GraphChunk], Tensor]


class OneHop(Protocol):
    """Makes a chunk of some nodes and all their neighbours, for one layer."""

    def chunk(self, seeds: Tensor, step: int) -> GraphChunk: ...


@dataclass(frozen=True)
class RowsInTurn:
    """`mine` are the nodes whose hidden rows this replica computes, `own` those of the output.

    `exchange` sums a tensor over replicas, in place. What enters the first layer has the nodes of
    `own` first, then the others, round to its beginning; hidden rows are in the order of nodes.
    """

    one_hop: OneHop
    indptr: Tensor
    """int64 [nodes + 1], edges by target."""
    mine: range
    own: range
    hops: int
    exchange: Callable[[Tensor], None]

    @property
    def nodes(self) -> int:
        return len(self.indptr) - 1

    def through(self, layer: Layer, x: Rows, hop: int) -> Tensor:
        """What a layer gives of all rows: [nodes, ...], of the last hop [own, ...]."""
        last = hop == self.hops - 1
        rows = self.own if last else self.mine
        parts = []
        for chunk in self.pieces(rows):
            places = chunk.nodes if hop else (chunk.nodes - self.own.start) % self.nodes
            parts.append(layer(take_rows(x, places), chunk))
        computed = torch.cat(parts)
        if last or len(rows) == self.nodes:
            return computed
        everyone = computed.new_zeros(self.nodes, *computed.shape[1:])
        everyone[rows.start : rows.stop] = computed
        self.exchange(everyone)
        return everyone

    def pieces(self, rows: range) -> Iterator[GraphChunk]:
        """Neighbouring nodes with few edges together, and all their neighbours; every layer's
        block is the same."""
        first = rows.start
        while first < rows.stop:
            most = int(self.indptr[first]) + EDGES_AT_ONCE
            stop = int(torch.searchsorted(self.indptr, most, right=True)) - 1
            stop = min(max(stop, first + 1), rows.stop)
            yield self.piece(torch.arange(first, stop))
            first = stop

    def piece(self, nodes: Tensor) -> GraphChunk:
        """Of these nodes, ascending."""
        chunk = self.one_hop.chunk(nodes, 0)
        return replace(chunk, blocks=tuple(chunk.blocks) * self.hops, sampled=False)
