"""Some rows of all features, by their numbers: a first layer may read them where they lie."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from gnnhpc.graphs.halves import computed


@dataclass(frozen=True)
class IndexedRows:
    """Row k is row `nodes[k]` of `features` [nodes, F]; `nodes` is int64 [rows]. No gradient.

    Features may be kept in half precision: they are computed with in single.
    """

    features: Tensor
    nodes: Tensor

    def __len__(self) -> int:
        return len(self.nodes)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self), self.features.shape[1]

    def to(self, device: torch.device | str) -> Self:
        return type(self)(self.features.to(device), self.nodes.to(device))

    def to_dense(self) -> Tensor:
        """A copy, [rows, F]."""
        return computed(self.features.index_select(0, self.nodes))
