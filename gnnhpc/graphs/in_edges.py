"""The edges of a graph by the node that they lead to, as samplers read them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from gnnhpc.core.errors import InputError

MOST_NODES = 2**31 - 1
"""That int32 can number."""


@dataclass(frozen=True)
class InEdges:
    """Row v has the sources of the edges into node v, ascending; an edge's number is its place.

    The order is that of `Graph.edges`. Half as large as these, so that a large graph's are kept
    beside them and mapped: ranks of a host share them.
    """

    indptr: Tensor
    """int64 [nodes + 1]"""
    source: Tensor
    """int32 [edges]"""

    @classmethod
    def of(cls, edges: Tensor, nodes: int) -> Self:
        """Of int64 [2, E], sorted by (target, source).

        Raises InputError for more nodes than can be numbered.
        """
        if nodes > MOST_NODES:
            raise InputError("graph", "nodes", nodes, f"at most {MOST_NODES} to sample or to cache")
        source, target = edges
        # Without counting all edges' ends: those of a large graph are read from a file.
        indptr = torch.searchsorted(target.contiguous(), torch.arange(nodes + 1))
        return cls(indptr, source.to(torch.int32))

    @property
    def degrees(self) -> Tensor:
        """int64 [nodes]"""
        return self.indptr.diff()

    def among(self, kept: Tensor) -> Self:
        """Those with both ends among the `kept` nodes, bool [nodes], numbered anew."""
        nodes = len(kept)
        alive = kept[self.source]
        alive &= torch.repeat_interleave(kept, self.degrees)
        before = torch.zeros(len(alive) + 1, dtype=torch.int64)
        torch.cumsum(alive, 0, out=before[1:])
        return type(self)(before[self.indptr[: nodes + 1]], self.source[alive])
