"""Products of features with a weight [F, D]: of stored entries, and of dense rows after dropout.

Only the weight has a gradient. In C++, backward leaves out rows without one, unless a product was
not finite: a gradient of 0 times NaN or infinity is NaN, as in torch, and a run that diverges at
nodes without labels must show it.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gnnhpc.graphs.node_features import SparseRows, computed
from gnnhpc.kernels.dispatch import backend, call, mask_argument, reads_halves
from gnnhpc.kernels.dropout_mask import Mask
from gnnhpc.kernels.rowwise import drop_rows
from gnnhpc.kernels.torch import torch_products

KERNEL = "sparse_features"
FEW_OUTPUTS = 32
"""Up to so many the product multiplies dense rows as they are, several at once; with more it
selects the entries that dropout leaves. `sparse_features.cpp` has the same number."""


@dataclass(frozen=True)
class DroppedRows:
    """Dense features to which the product that comes next applies dropout while it reads them.

    Written out, features are as large as all else of a step, and half of them zeros. Row i is row
    `at[i]` of `x` [n, F], which is contiguous, or row i, and row `rows[i]` of the full graph.
    `x` needs no gradient, and may be kept in half precision.
    """

    x: Tensor
    rows: Tensor
    mask: Mask | None
    """Dropout mask; None drops nothing."""
    at: Tensor | None = None

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self), self.x.shape[1]

    def to_dense(self) -> Tensor:
        """A copy, [rows, F]."""
        taken = computed(self.x if self.at is None else self.x.index_select(0, self.at))
        return taken if self.mask is None else drop_rows(taken, self.rows, self.mask)


def reads_dense(features: Tensor) -> bool:
    """Whether products read dense `features` where they lie, half precision too."""
    return reads_halves(KERNEL, features, "dropped_forward")


def forward(rows: SparseRows | DroppedRows, weight: Tensor) -> tuple[Tensor, bool]:
    """rows [n, F] @ weight [F, D], and whether it is known that all of it is finite."""
    width = weight.shape[1]
    if isinstance(rows, SparseRows) and (products := _other_products(weight)) is not None:
        return products.sparse_forward(rows, weight), False
    out = weight.new_empty(len(rows), width)
    finite = ctypes.c_bool(True)
    if isinstance(rows, SparseRows):
        stored = (rows.indptr, rows.columns, rows.values, len(rows))
        args = (*stored, weight, out, width, ctypes.byref(finite))
        call(KERNEL, "sparse_forward", weight.dtype, *args)
    else:
        args = (*_dense(rows), weight, out, width, *_mask(rows), ctypes.byref(finite))
        call(KERNEL, "dropped_forward", rows.x.dtype, *args)
    return out, finite.value


def backward(rows: SparseRows | DroppedRows, upstream: Tensor, *, finite: bool) -> Tensor:
    """Transposed rows [F, n] @ upstream [n, D]; `finite` is what forward found."""
    upstream, width = upstream.contiguous(), upstream.shape[1]
    if isinstance(rows, DroppedRows):
        partial = upstream.new_empty(torch.get_num_threads(), rows.shape[1], width)
        args = (*_dense(rows), upstream, partial, width, *_mask(rows), finite)
        call(KERNEL, "dropped_backward", rows.x.dtype, *args)
        return partial[0]
    if (products := _other_products(upstream)) is not None:
        found: Tensor = products.sparse_backward(rows, upstream)
        return found
    # Each part adds into its own copy of the result, so more parts than work cost time.
    parts = max(1, min(torch.get_num_threads(), len(rows.values) // rows.width))
    partial = upstream.new_empty(parts, rows.width, width)
    stored = (rows.indptr, rows.columns, rows.values, len(rows))
    args = (*stored, upstream, partial, rows.width, width, finite, parts)
    call(KERNEL, "sparse_backward", upstream.dtype, *args)
    return partial[0]


def _other_products(x: Tensor) -> Any:
    """The module that multiplies stored features in Triton or torch; None where C++ does."""
    code = backend(KERNEL, x)
    if code == "triton":
        from gnnhpc.kernels.triton import triton_features

        return triton_features
    return torch_products if code == "torch" else None


def _dense(rows: DroppedRows) -> tuple[Any, ...]:
    """Features, which of their rows, the rows' numbers in the full graph, and sizes."""
    return rows.x, rows.at, rows.rows, len(rows), rows.shape[1]


def _mask(rows: DroppedRows) -> tuple[Any, float]:
    return mask_argument(rows.mask), 1.0 if rows.mask is None else rows.mask.scale
