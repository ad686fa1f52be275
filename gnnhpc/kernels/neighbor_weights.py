"""Sums over neighbours: how much of each enters, and over which edges of a block they run."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import NamedTuple, Self

from torch import Tensor

from gnnhpc.graphs.blocks import Block, Transpose

SLOPE = 0.2
"""Slope below 0 of the leaky ReLU of attention scores, PyG's default and the papers'."""


@dataclass(frozen=True)
class NeighbourWeights:
    """An edge e from j to i counts edge[e] * source[j] * target[i]; None is 1 for all.

    `source` is [rows_in], `target` [rows_out] and `edge` [edges], in the block's order, all of the
    data's precision. With `loops` a node's self-loop is one of its edges; `own` times the node's
    input is added.
    """

    source: Tensor | None = None
    target: Tensor | None = None
    loops: bool = False
    own: float = 0.0
    edge: Tensor | None = None

    def times(self, factor: float) -> Self:
        """All of them times a factor; there must be factors of targets, and no `own`."""
        assert self.target is not None
        return dataclasses.replace(self, target=self.target * factor)

    @classmethod
    def normalised(cls, degree: Tensor, rows_out: int, edge: Tensor | None = None) -> Self:
        """w_ij / sqrt(d_i d_j), self-loops counted: Kipf & Welling 2017, equation 2.

        `degree` [rows_in], of the data's precision, has the edges into each node with its
        self-loop, or the sum of their weights `edge` [edges]; 0 for padding.
        """
        factor = degree.rsqrt().masked_fill(degree <= 0, 0.0)
        return cls(factor, factor[:rows_out], loops=True, edge=edge)

    @classmethod
    def mean(cls, degree: Tensor, rows_out: int) -> Self:
        """1 / the number of neighbours, the node itself aside: Hamilton et al. 2017."""
        return cls(target=1 / (degree[:rows_out] - 1).clamp(min=1))


class RowSums(NamedTuple):
    """Each row's weighted sum of x over its edges; `aggregate.cpp` has the formula.

    Rows are a block's targets, or for gradients its sources. None is 1 for all.
    """

    weights: NeighbourWeights
    edges: Block | Transpose
    """The edges row by row."""
    others: Tensor
    """[edges]: the row of x at each edge's other end."""
    rows_of: Tensor
    """[edges], in the block's order: the row that each edge belongs to."""
    number: Tensor | None
    """[edges]: each edge's place in the block; None where they stand in its order."""
    of_others: Tensor | None
    """Factors of the other ends."""
    of_rows: Tensor | None
    """Factors of the rows."""
    rows_with_own: int
    """Rows past these have no row of x of their own."""

    @property
    def rows(self) -> int:
        return len(self.edges.indptr) - 1


def by_target(block: Block, weights: NeighbourWeights) -> RowSums:
    """The sums of x [rows_in, D] into [rows_out, D]."""
    ends = (block, block.source, block.target, None)
    return RowSums(weights, *ends, weights.source, weights.target, block.rows_out)


def by_source(block: Block, weights: NeighbourWeights) -> RowSums:
    """Their gradient: the sums of [rows_out, D] into [rows_in, D]."""
    by = block.transpose
    ends = (by, by.target, block.source, by.edge)
    return RowSums(weights, *ends, weights.target, weights.source, block.rows_out)
