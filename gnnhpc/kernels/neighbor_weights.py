"""How much of each neighbour enters a sum: factors of the edge, its two ends and the node."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Self

from torch import Tensor

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
