"""Many small graphs in memory, and unions of some of them as mini-batches.

All of a graph's nodes, edges and edges by source lie together in the store, so that a union is a
few gathers of whole ranges, without a loop over its graphs and without sorting.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from gnnhpc.graphs.blocks import Block, GraphChunk, Transpose
from gnnhpc.graphs.csr import Ids, offsets, segments
from gnnhpc.graphs.graph import IGNORED, InEdges
from gnnhpc.graphs.halo_chunks import cut_block


@dataclass(frozen=True)
class GraphSet:
    """Graphs that are classified, their nodes numbered one graph after another."""

    name: str
    features: Tensor
    """float32 [nodes, F]: sparse CSR, or dense where the source is dense."""
    edges: Tensor
    """int64 [2, E] directed (source, target), both of one graph, without self-loops or duplicates,
    sorted by (target, source)."""
    first: Tensor
    """int64 [graphs + 1]: the number of each graph's first node; none is empty."""
    labels: Tensor
    """int64 [graphs]"""
    masks: dict[str, Tensor]
    """bool [graphs] each: train, val, test."""
    classes: int

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def nodes(self) -> int:
        """The nodes of all graphs together."""
        return int(self.first[-1])

    def targets(self, graphs: Tensor, splits: tuple[str, ...]) -> dict[str, Tensor]:
        """The labels of `graphs`, int64 [n], of each split: `IGNORED` for graphs of others."""
        labels = self.labels[graphs]
        return {split: labels.where(self.masks[split][graphs], IGNORED) for split in splits}

    def numbers(self, *splits: str) -> Tensor:
        """The graphs of these splits, int64 [n], ascending."""
        chosen = torch.stack([self.masks[split] for split in splits]).any(0)
        return chosen.nonzero().flatten()


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
        nodes = torch.arange(graphs.nodes)
        whole = cut_block(InEdges.of(graphs.edges, graphs.nodes), nodes, graphs.nodes)
        by_source = whole.transpose.edge.numpy()
        self._first, self._edge = graphs.first.numpy(), whole.edge.numpy()
        self._degree = whole.indptr.diff().numpy()
        self._out_degree = whole.transpose.indptr.diff().numpy()
        self._first_edge = whole.indptr.numpy()[self._first]
        counts = np.diff(self._first_edge)
        # A graph's edges by source fill the same range as those by target.
        self._by_source = by_source - np.repeat(self._first_edge[:-1], counts)
        # Nodes are numbered within their graph.
        first = np.repeat(self._first[:-1], counts)
        self._source, self._target = whole.source.numpy() - first, whole.target.numpy() - first
        self._source_target = self._target[by_source]

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
        block = Block(
            _tensor(offsets(degree)),
            _tensor(self._source[edges] + shift),
            _tensor(self._target[edges] + shift),
            _tensor(self._edge[edges]),
            rows,
        )
        # The order by source is known, where `Block` would sort.
        block.__dict__["transpose"] = Transpose(
            _tensor(offsets(self._out_degree[nodes])),
            _tensor(self._by_source[edges] + np.repeat(offsets(edge_counts)[:-1], edge_counts)),
            _tensor(self._source_target[edges] + shift),
        )
        pooling = PoolingBlock(
            _tensor(first),
            torch.arange(rows),
            _tensor(np.repeat(np.arange(len(chosen)), node_counts)),
            _tensor(nodes),
            rows,
        )
        return GraphChunk(
            nodes=_tensor(nodes),
            rows=(rows,) * (self.hops + 1) + (len(chosen),),
            blocks=(block,) * self.hops,
            degree=_tensor(degree),
            targets=self.graphs.targets(numbers, splits),
            own=rows,
            graphs=numbers,
            pooling=pooling,
        )


def _tensor(ids: Ids) -> Tensor:
    return torch.from_numpy(ids)
