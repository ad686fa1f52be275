"""What the reference's layers compute on: edges, stored features, and one forward pass's settings.

Everything is written for clarity: each edge by itself, dense products, float64.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

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
        return EdgeList(self.nodes, *ends, self.missing, self.sampled)


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


@dataclass
class RunningStatistics:
    """The running statistics of one BatchNorm on one replica."""

    mean: Tensor
    variance: Tensor
    batches: int = 0
    pending: list[tuple[Tensor, Tensor, int]] = field(default_factory=list)
    """Mean, biased variance and rows of micro-batches that have not moved the statistics yet."""

    def move(self, momentum: float = 0.1) -> None:
        """Move towards the statistics of all pending rows together."""
        if not self.pending:
            return
        rows = sum(count for _, _, count in self.pending)
        mean = torch.stack([m * n for m, _, n in self.pending]).sum(0) / rows
        squares = [(v + (m - mean).square()) * n for m, v, n in self.pending]
        unbiased = torch.stack(squares).sum(0) / (rows - 1)
        self.mean = (1 - momentum) * self.mean + momentum * mean
        self.variance = (1 - momentum) * self.variance + momentum * unbiased
        self.batches += 1
        self.pending.clear()


@dataclass
class ForwardPass:
    """The settings of one forward pass of one micro-batch."""

    step: int
    seed: int
    training: bool
    deferred: bool
    """Whether running statistics move once a mini-batch."""
    statistics: dict[str, RunningStatistics]
    """This replica's, by the name of the BatchNorm."""
    edges: EdgeList | None = None
    ids: Tensor | None = None
    """int64 [rows]: the node of each row of a graph; None for images."""
    graph_of_row: Tensor | None = None
    """int64 [rows]: the place of each node's graph among many small graphs."""
    graphs: int = 0
    """The number of small graphs."""
    side: int = 0
    """Pixels of the side of a square image."""

    @property
    def graph(self) -> EdgeList:
        """The edges; ValueError for data without any."""
        if self.edges is None:
            raise ValueError("this micro-batch has no edges")
        return self.edges

    def entry_numbers(self, x: Activation) -> Tensor:
        """int64, the number of each entry of `x` in the whole graph, which dropout masks follow."""
        if isinstance(x, SparseFeatures):
            return torch.arange(len(x.value)) if x.number is None else x.number
        if self.ids is None:
            return torch.arange(x.numel()).view_as(x)
        return self.ids[:, None] * x.shape[1] + torch.arange(x.shape[1])


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
    """[E, 1]: 1 / sqrt(d_i d_j) of each edge (Kipf & Welling 2017, equation 2), self-loops counted.

    Where edges are sampled, those of a node stand for all d of them: each counts d / sampled.
    """
    degree = edges.degree(dtype)
    weights = (degree[edges.source] * degree[edges.target]).rsqrt()
    if edges.sampled:
        weights = weights * (degree / edges.in_degree.to(dtype))[edges.target]
    return weights[:, None]


def mean_divisor(edges: EdgeList, dtype: torch.dtype) -> Tensor:
    """[nodes]: what a mean over neighbours divides by, the sampled ones where edges are sampled."""
    return edges.in_degree.to(dtype) if edges.sampled else edges.degree(dtype)
