"""Edges and features as the reference computes with them: each edge by itself, dense products."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gnnhpc.graphs.blocks import Block, GraphChunk
from gnnhpc.graphs.graph import Graph
from gnnhpc.graphs.graph_set import GraphSet
from gnnhpc.graphs.node_features import SparseRows

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
    full_degree: Tensor
    """int64 [nodes]: the graph's edges into each node, listed or not, its self-loop included."""
    sampled: bool = False
    """Whether the edges into a node are a sample that stands for all of them."""
    weight: Tensor | None = None
    """float64 [E]: the edges' weights, 1 for a self-loop; None for a graph without weights."""
    weighted_degree: Tensor | None = None
    """float64 [nodes]: the sum of the weights of all edges into each node, listed or not."""

    @classmethod
    def of(cls, chunk: GraphChunk, block: Block) -> EdgeList:
        """A chunk's edges in one layer, between all rows that enter it."""
        rows, weight, weighted = block.rows_in, block.edge_weight, chunk.weighted_degree
        return cls(
            *(rows, block.source, block.target, block.edge, chunk.degree[:rows], chunk.sampled),
            weight=None if weight is None else weight.double(),
            weighted_degree=None if weighted is None else weighted[:rows],
        )

    @property
    def in_degree(self) -> Tensor:
        """int64 [nodes]: listed edges into each node, its self-loop included."""
        return torch.bincount(self.target, minlength=self.nodes)

    def degree(self, dtype: torch.dtype) -> Tensor:
        """[nodes]: edges into each node in the graph, whether they are listed or not."""
        return self.full_degree.to(dtype)

    def without_loops(self) -> EdgeList:
        kept = self.source != self.target
        weight = None if self.weight is None else self.weight[kept]
        ends = self.source[kept], self.target[kept], self.number[kept]
        return EdgeList(
            *(self.nodes, *ends, self.full_degree - 1, self.sampled, weight, self.weighted_degree)
        )


Activation = Tensor | SparseRows


def node_features(data: Graph | GraphSet, nodes: Tensor) -> Activation:
    """The features of nodes, int64 [n], in float64; zeros for -1."""
    features, is_real = data.features, nodes >= 0
    nodes = nodes.clamp(min=0)
    if features.layout != torch.sparse_csr:
        return features[nodes].double() * is_real[:, None]
    first = features.crow_indices()
    counts = torch.where(is_real, first.diff()[nodes], 0)
    indptr = torch.cat((torch.zeros(1, dtype=torch.int64), counts.cumsum(0)))
    moved = torch.repeat_interleave(first[nodes] - indptr[:-1], counts)
    entries = torch.arange(len(moved)) + moved
    values, columns = features.values()[entries].double(), features.col_indices()[entries].long()
    return SparseRows(indptr, columns, values, entries, features.shape[1])


def row_of_values(x: SparseRows) -> Tensor:
    """int64 [stored]: the row of each stored value."""
    return torch.repeat_interleave(torch.arange(len(x)), x.indptr.diff().cpu())


def product(x: Activation, weight: Tensor) -> Tensor:
    if isinstance(x, Tensor):
        return x @ weight
    places = torch.stack((row_of_values(x), x.columns))
    matrix = torch.sparse_coo_tensor(places, x.values, x.shape, check_invariants=False)
    found: Tensor = torch.sparse.mm(matrix, weight)
    return found


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
