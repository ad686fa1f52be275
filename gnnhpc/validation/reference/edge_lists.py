"""Edges and features as the reference computes with them: each edge by itself, dense products."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gnnhpc.graphs.graph import Graph
from gnnhpc.graphs.graph_set import GraphSet

COLUMNS = 32
"""Columns of messages that are summed together, which bounds the memory that messages take."""


@dataclass(frozen=True)
class EdgeList:
    """Directed edges between `nodes` rows, with one self-loop a row."""

    nodes: int
    source: Tensor
    """int64 [E]"""
    target: Tensor
    """int64 [E]"""
    number: Tensor
    """int64 [E]: each edge's number in the full graph; the self-loop of node n has edges + n."""
    missing: Tensor | None = None
    """int64 [nodes]: the graph's edges into each node that are not in the list; None for zeros."""
    sampled: bool = False
    """Whether the edges into a node are a sample that stands for all of them."""
    weight: Tensor | None = None
    """float64 [E]: the edges' weights, 1 for a self-loop; None for a graph without weights."""
    weighted_degree: Tensor | None = None
    """float64 [nodes]: the sum of the weights of all edges into each node, listed or not."""

    @property
    def in_degree(self) -> Tensor:
        """int64 [nodes]: listed edges into each node, its self-loop included."""
        return torch.bincount(self.target, minlength=self.nodes)

    def degree(self, dtype: torch.dtype) -> Tensor:
        """[nodes]: edges into each node in the graph, whether they are listed or not."""
        listed = self.in_degree
        return (listed if self.missing is None else listed + self.missing).to(dtype)

    def without_loops(self) -> EdgeList:
        kept = self.source != self.target
        ends = self.source[kept], self.target[kept], self.number[kept]
        weight = None if self.weight is None else self.weight[kept]
        return EdgeList(self.nodes, *ends, self.missing, self.sampled, weight, self.weighted_degree)


@dataclass(frozen=True)
class SparseFeatures:
    """Features as they are stored: row, column and value of each stored number, in row order."""

    row: Tensor
    column: Tensor
    value: Tensor
    """float64 [stored]"""
    shape: tuple[int, int]
    number: Tensor | None = None
    """int64 [stored]: each one's number among all stored features; None for 0, 1, 2, ..."""

    def to_dense(self) -> Tensor:
        return self._matrix().to_dense()

    def rows(self, ids: Tensor) -> SparseFeatures:
        """The rows `ids`, int64 [n] ascending."""
        place = torch.full((self.shape[0],), -1).scatter(0, ids, torch.arange(len(ids)))
        kept = (place[self.row] >= 0).nonzero().flatten()
        ends = place[self.row[kept]], self.column[kept]
        return SparseFeatures(*ends, self.value[kept], (len(ids), self.shape[1]), kept)

    def times(self, weight: Tensor) -> Tensor:
        product: Tensor = torch.sparse.mm(self._matrix(), weight)
        return product

    def _matrix(self) -> Tensor:
        places = torch.stack((self.row, self.column))
        return torch.sparse_coo_tensor(places, self.value, self.shape, check_invariants=False)


Activation = Tensor | SparseFeatures


def node_features(graph: Graph | GraphSet) -> Activation:
    """The features of all nodes in float64."""
    features = graph.features
    if features.layout != torch.sparse_csr:
        return features.double()
    stored = features.crow_indices().diff()
    return SparseFeatures(
        torch.repeat_interleave(torch.arange(len(stored)), stored),
        features.col_indices().long(),
        features.values().double(),
        (features.shape[0], features.shape[1]),
    )


def rows_of(x: Activation, ids: Tensor) -> Activation:
    """The rows `ids`, int64 [n], ascending where features are stored sparsely."""
    return x[ids] if isinstance(x, Tensor) else x.rows(ids)


def product(x: Activation, weight: Tensor) -> Tensor:
    return x @ weight if isinstance(x, Tensor) else x.times(weight)


def sum_over_edges(x: Tensor, edges: EdgeList, weights: Tensor | None = None) -> Tensor:
    """[nodes, D]: for each node the sum of x [nodes, D] over the sources of its edges.

    `weights` [E, 1] are factors of the edges.
    """
    sums = []
    for columns in x.split(COLUMNS, 1):
        messages = columns[edges.source]
        if weights is not None:
            messages = messages * weights
        zeros = messages.new_zeros(edges.nodes, messages.shape[1])
        sums.append(zeros.index_add(0, edges.target, messages))
    return torch.cat(sums, 1)


def gcn_weights(edges: EdgeList, dtype: torch.dtype) -> Tensor:
    """[E, 1]: w_ij / sqrt(d_i d_j) of each edge (Kipf & Welling 2017, equation 2), where d_i is the
    sum of the weights into node i, self-loop included.

    Where edges are sampled, those of a node stand for all d of them: each counts d / sampled.
    """
    degree = edges.degree(dtype)
    total = degree if edges.weighted_degree is None else edges.weighted_degree.to(dtype)
    weights = (total[edges.source] * total[edges.target]).rsqrt()
    if edges.weight is not None:
        weights = weights * edges.weight.to(dtype)
    if edges.sampled:
        weights = weights * (degree / edges.in_degree.to(dtype))[edges.target]
    return weights[:, None]


def mean_divisor(edges: EdgeList, dtype: torch.dtype) -> Tensor:
    """[nodes]: what a mean over neighbours divides by, the sampled ones where edges are sampled."""
    return edges.in_degree.to(dtype) if edges.sampled else edges.degree(dtype)


def edge_softmax(scores: Tensor, edges: EdgeList) -> Tensor:
    """The softmax of scores [E, heads] over the edges of each target."""
    peak = scores.new_full((edges.nodes, scores.shape[1]), -math.inf)
    index = edges.target[:, None].expand_as(scores)
    peak = peak.scatter_reduce(0, index, scores.detach(), "amax")
    raised = (scores - peak[edges.target]).exp()
    total = torch.zeros_like(peak).index_add(0, edges.target, raised)
    return raised / total[edges.target]


def largest_neighbor(x: Tensor, edges: EdgeList) -> Tensor:
    """[nodes, D]: the largest entry of each node's neighbours, 0 for a node without any.

    The gradient goes to the first of equal entries, in the order of the edges.
    """
    source, target = edges.source, edges.target
    places = torch.arange(len(source))[:, None].expand(-1, x.shape[1])
    index = target[:, None].expand_as(places)
    best = torch.full_like(x, -torch.inf).scatter_reduce(0, index, x[source].detach(), "amax")
    holds_best = torch.where(x[source] == best[target], places, len(source))
    first = torch.full(x.shape, len(source)).scatter_reduce(0, index, holds_best, "amin")
    has_none = first == len(source)
    chosen = source[first.clamp(max=max(len(source) - 1, 0))] if len(source) else first
    return torch.where(has_none, 0.0, x.gather(0, torch.where(has_none, 0, chosen)))
