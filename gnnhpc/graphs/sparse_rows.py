"""Sparse features, as inputs and outputs of layers."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from torch import Tensor


class ByColumn(NamedTuple):
    """The stored values again, in the order of their columns and in each of their rows: CSC."""

    indptr: Tensor
    """int64 [width + 1]."""
    row: Tensor
    """int64 [nonzeros]."""
    place: Tensor
    """Where each stands in CSR's order, int64 [nonzeros]."""


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
    positions_of: Self | None = dataclasses.field(default=None, repr=False)
    """Those whose values these replace, at the same positions; None of the first."""

    def __len__(self) -> int:
        return len(self.indptr) - 1

    @property
    def shape(self) -> tuple[int, int]:
        return len(self), self.width

    def with_values(self, values: Tensor) -> Self:
        """The same positions with other values."""
        return dataclasses.replace(self, values=values, positions_of=self.positions_of or self)

    @functools.cached_property
    def by_column(self) -> ByColumn:
        """Computed once for all that have these positions."""
        if self.positions_of is not None:
            return self.positions_of.by_column
        device = self.columns.device
        row = torch.repeat_interleave(
            torch.arange(len(self), device=device), self.indptr.diff(), output_size=len(self.values)
        )
        columns, place = self.columns.long().sort(stable=True)
        first = torch.searchsorted(columns, torch.arange(self.width + 1, device=device))
        return ByColumn(first, row[place], place)

    def to(self, device: torch.device | str) -> Self:
        parts = ("indptr", "columns", "values", "entries")
        moved = {name: getattr(self, name).to(device) for name in parts}
        return dataclasses.replace(self, **moved, positions_of=None)

    def to_csr(self) -> Tensor:
        return torch.sparse_csr_tensor(
            self.indptr, self.columns, self.values, self.shape, check_invariants=False
        )

    def to_dense(self) -> Tensor:
        return self.to_csr().to_dense()
