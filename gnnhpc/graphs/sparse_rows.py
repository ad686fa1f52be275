"""Sparse features, as inputs and outputs of layers."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor


@dataclass(frozen=True)
class SparseRows:
    """Features as they are stored: CSR, [rows, width].

    `entries` int64 [nonzeros] is the position of each stored value in the whole graph's CSR store.
    A stored value may be zero, after dropout. Needs no gradient.
    """

    indptr: Tensor
    columns: Tensor
    values: Tensor
    entries: Tensor
    width: int

    def __len__(self) -> int:
        return len(self.indptr) - 1

    @property
    def shape(self) -> tuple[int, int]:
        return len(self), self.width

    def with_values(self, values: Tensor) -> Self:
        """The same positions with other values."""
        return dataclasses.replace(self, values=values)

    def to(self, device: torch.device | str) -> Self:
        parts = ("indptr", "columns", "values", "entries")
        moved = {name: getattr(self, name).to(device) for name in parts}
        return dataclasses.replace(self, **moved)

    def to_csr(self) -> Tensor:
        return torch.sparse_csr_tensor(
            self.indptr, self.columns, self.values, self.shape, check_invariants=False
        )

    def to_dense(self) -> Tensor:
        return self.to_csr().to_dense()
