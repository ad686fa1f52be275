"""Computes the layers of a whole graph in blocks of rows, so that memory never holds all edges.

Each layer takes the activations of all nodes and gives those of all nodes, over all neighbours.
Replicas compute a share of the rows each and exchange them after every layer but the last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from gnnhpc.graphs.blocks import GraphChunk
from gnnhpc.graphs.node_features import Rows, take_rows

EDGES_AT_ONCE = 8_000_000
"""The most edges into a block of rows: three arrays of 64 MB, and one copy of their inputs."""

Layer = Callable[[Rows, GraphChunk], Tensor]


class OneHop(Protocol):
    """Makes a chunk of some nodes and all their neighbours, for one layer."""

    def chunk(self, seeds: Tensor, step: int) -> GraphChunk: ...


@dataclass(frozen=True)
class LayerwiseRows:
    """The rows that this replica computes of every layer.

    What enters the first layer has the nodes of `own` first, then the others, cyclically; hidden
    rows are in the order of nodes.
    """

    one_hop: OneHop
    indptr: Tensor
    """int64 [nodes + 1], edges by target."""
    mine: range
    """The nodes whose hidden rows this replica computes."""
    own: range
    """The nodes whose output rows this micro-batch computes."""
    hops: int
    exchange: Callable[[Tensor], None]
    """Sums a tensor over replicas, in place."""

    @property
    def nodes(self) -> int:
        return len(self.indptr) - 1

    def through(self, layer: Layer, x: Rows, hop: int) -> Tensor:
        """Apply a layer to all rows: returns [nodes, ...], or [own, ...] after the last hop."""
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
        """Chunks of consecutive nodes with at most `EDGES_AT_ONCE` edges into them."""
        first = rows.start
        while first < rows.stop:
            most = int(self.indptr[first]) + EDGES_AT_ONCE
            stop = int(torch.searchsorted(self.indptr, most, right=True)) - 1
            stop = min(max(stop, first + 1), rows.stop)
            yield self.piece(torch.arange(first, stop))
            first = stop

    def piece(self, nodes: Tensor) -> GraphChunk:
        """The chunk of these nodes, ascending; the blocks of all layers are the same."""
        chunk = self.one_hop.chunk(nodes, 0)
        return replace(chunk, blocks=tuple(chunk.blocks) * self.hops, sampled=False)
