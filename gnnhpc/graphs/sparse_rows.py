"""Sparse features on their way from dropout to attention."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class SparseRows:
    """Features that pass from dropout to attention as they are stored: CSR, [rows, width].

    A stored value may be zero: what dropout took stays in its place. Needs no gradient.
    """

    indptr: Tensor
    columns: Tensor
    values: Tensor
    width: int

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.indptr) - 1, self.width

    def to_csr(self) -> Tensor:
        return torch.sparse_csr_tensor(
            self.indptr, self.columns, self.values, self.shape, check_invariants=False
        )

    def to_dense(self) -> Tensor:
        return self.to_csr().to_dense()
