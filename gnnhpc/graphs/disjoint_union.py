"""Some of many small graphs as one graph of which they are the parts.

All of a graph's nodes, edges and edges by source lie together in the store, so that a union is a
few gathers of whole ranges, without a loop over its graphs and without sorting.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from gnnhpc.graphs.blocks import Block, FullGraph, GraphChunk, Transpose, sorted_by_source
from gnnhpc.graphs.csr import Ids, offsets, segments
from gnnhpc.graphs.graph_set import GraphSet


@dataclass(frozen=True)
class UnionBlock(Block):
    """A union's edges, of which the order by source is known."""

    by_source: Transpose | None = None

    @cached_property
    def transpose(self) -> Transpose:
        return self.by_source or sorted_by_source(self)

    def to(self, device: torch.device | str) -> Block:
        plain = Block(self.indptr, self.source, self.target, self.edge, self.rows_in)
        return plain.to(device)


class PoolingBlock(Block):
    """Edges from all nodes of a graph to it: `source` counts up, so both orders are the same."""

    @cached_property
    def transpose(self) -> Transpose:
        starts = torch.arange(self.rows_in + 1, device=self.source.device)
        return Transpose(starts, self.source, self.target)


class DisjointUnions:
    """Makes unions of the graphs of one set, for a model with so many `hops`."""

    def __init__(self, graphs: GraphSet, hops: int) -> None:
        self.graphs, self.hops = graphs, hops
        nodes, edges = graphs.nodes, graphs.edges.shape[1]
        source, target = graphs.edges.numpy()
        self._first = graphs.first.numpy()
        node = np.arange(nodes)
        self._degree = np.bincount(target, minlength=nodes) + 1
        indptr = offsets(self._degree)
        # The edge of a node to itself is the last of its row.
        places = np.arange(edges) + target
        self._source = np.empty(edges + nodes, dtype=np.int64)
        self._edge = np.empty_like(self._source)
        self._source[places], self._edge[places] = source, np.arange(edges)
        self._source[indptr[1:] - 1], self._edge[indptr[1:] - 1] = node, edges + node
        self._target = np.repeat(node, self._degree)
        self._first_edge = indptr[self._first]
        # A graph's edges by source fill the same range as those by target.
        order = np.argsort(self._source, kind="stable")
        self._out_degree = np.bincount(self._source, minlength=nodes)
        edge_graph_first = np.repeat(self._first[:-1], np.diff(self._first_edge))
        self._by_source = order - np.repeat(self._first_edge[:-1], np.diff(self._first_edge))
        self._source -= edge_graph_first
        self._target -= edge_graph_first
        self._source_target = self._target[order]
        self._full = FullGraph(nodes, edges, graphs.features.shape[1], graphs.classes)

    def of(self, numbers: Tensor, splits: tuple[str, ...]) -> GraphChunk:
        """The union of these graphs, int64 [n] ascending, with the labels of these splits.

        Its rows are the nodes of the first graph, then those of the next, as they are numbered.
        """
        chosen = numbers.numpy()
        nodes, node_counts = segments(self._first, chosen)
        edges, edge_counts = segments(self._first_edge, chosen)
        first, rows = offsets(node_counts), len(nodes)
        shift = np.repeat(first[:-1], edge_counts)
        degree = self._degree[nodes]
        block = UnionBlock(
            _tensor(offsets(degree)),
            _tensor(self._source[edges] + shift),
            _tensor(self._target[edges] + shift),
            _tensor(self._edge[edges]),
            rows,
            Transpose(
                _tensor(offsets(self._out_degree[nodes])),
                _tensor(self._by_source[edges] + np.repeat(offsets(edge_counts)[:-1], edge_counts)),
                _tensor(self._source_target[edges] + shift),
            ),
        )
        global_nodes = _tensor(nodes)
        return GraphChunk(
            nodes=global_nodes,
            rows=(rows,) * (self.hops + 1) + (len(chosen),),
            blocks=(block,) * self.hops,
            degree=_tensor(degree),
            targets=self.graphs.targets(numbers, splits),
            own=rows,
            full=self._full,
            graphs=numbers,
            pooling=PoolingBlock(
                _tensor(first),
                torch.arange(rows),
                _tensor(np.repeat(np.arange(len(chosen)), node_counts)),
                global_nodes,
                rows,
            ),
        )


def _tensor(ids: Ids) -> Tensor:
    return torch.from_numpy(ids)
