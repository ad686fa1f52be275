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

from gnnhpc.graphs.node_features import SparseRows, computed, computed_dtype
from gnnhpc.kernels.dispatch import backend, call, filled, mask_argument, structures
from gnnhpc.kernels.dropout_mask import Mask
from gnnhpc.kernels.rowwise import drop_rows
from gnnhpc.kernels.torch import torch_aggregate

KERNEL = "sparse_features"
_DENSE_ROWS = structures(pointers="x at ids", sizes="rows features", reals="scale", masks="mask")


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
    return backend(KERNEL, features.new_empty(0, dtype=computed_dtype(features))) == "c++"


def forward(rows: SparseRows | DroppedRows, weight: Tensor) -> tuple[Tensor, bool]:
    """rows [n, F] @ weight [F, D], and whether it is known that all of it is finite."""
    width = weight.shape[1]
    if isinstance(rows, SparseRows) and (products := _other_products(weight)) is not None:
        return products.sparse_forward(rows, weight), False
    out = weight.new_empty(len(rows), width)
    finite = ctypes.c_bool(True)
    product = (weight, out, width, ctypes.byref(finite))
    if isinstance(rows, SparseRows):
        call(KERNEL, "sparse_forward", *_stored(rows), *product, dtype=weight.dtype)
    else:
        call(KERNEL, "dropped_forward", ctypes.byref(_dense(rows)), *product, dtype=rows.x.dtype)
    return out, finite.value


def backward(rows: SparseRows | DroppedRows, upstream: Tensor, *, finite: bool) -> Tensor:
    """Transposed rows [F, n] @ upstream [n, D]; `finite` is what forward found."""
    upstream, width = upstream.contiguous(), upstream.shape[1]
    if isinstance(rows, DroppedRows):
        partial = upstream.new_empty(torch.get_num_threads(), rows.shape[1], width)
        args = (ctypes.byref(_dense(rows)), upstream, partial, width, finite)
        call(KERNEL, "dropped_backward", *args, dtype=rows.x.dtype)
        return partial[0]
    if (products := _other_products(upstream)) is not None:
        found: Tensor = products.sparse_backward(rows, upstream)
        return found
    # Each part adds into its own copy of the result, so more parts than work cost time.
    parts = max(1, min(torch.get_num_threads(), len(rows.values) // rows.width))
    partial = upstream.new_empty(parts, rows.width, width)
    product = (upstream, partial, rows.width, width, finite, parts)
    call(KERNEL, "sparse_backward", *_stored(rows), *product, dtype=upstream.dtype)
    return partial[0]


def _other_products(x: Tensor) -> Any:
    """The module that multiplies stored features in Triton or torch; None where C++ does."""
    code = backend(KERNEL, x)
    if code == "triton":
        from gnnhpc.kernels.triton import triton_aggregate

        return triton_aggregate
    return torch_aggregate if code == "torch" else None


def _stored(rows: SparseRows) -> tuple[Any, ...]:
    return rows.indptr, rows.columns, rows.values, len(rows)


def _dense(rows: DroppedRows) -> ctypes.Structure:
    """The C++ side's `DenseRows`."""
    scale = 1.0 if rows.mask is None else rows.mask.scale
    return filled(
        _DENSE_ROWS[computed_dtype(rows.x)],
        x=rows.x,
        at=rows.at,
        ids=rows.rows,
        rows=len(rows),
        features=rows.shape[1],
        scale=scale,
        mask=mask_argument(rows.mask),
    )
