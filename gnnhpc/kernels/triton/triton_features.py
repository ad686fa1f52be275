"""Dropout of rows, and products of stored features, on a GPU.

Products have the same bits each time; cuSPARSE's have not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gnnhpc.kernels.dropout_mask import Mask
from gnnhpc.kernels.triton import programs
from gnnhpc.kernels.triton.launch import at_once, launch, mask_arguments, power_of_two, warps

if TYPE_CHECKING:
    from gnnhpc.graphs.node_features import SparseRows

_AT_ONCE = 1024
"""Numbers that a program of dropout computes."""
_COLUMNS = 128
"""The most numbers of a row that a program computes."""
_PARTS = 16
"""That the sum of a feature is cut into, always: it has entries in thousands of rows, and there are
few features."""


def drop_rows(x: Tensor, rows: Tensor, mask: Mask) -> Tensor:
    """`x` [n, width] masked and scaled; its rows are `rows` [n] of the full graph."""
    assert len(rows) == len(x)
    x, rows = x.contiguous(), rows.contiguous()
    out = torch.empty_like(x)
    launch(
        programs.drop_rows,
        (-(-x.numel() // _AT_ONCE),),
        *(x, rows, out, x.numel(), x.shape[1], *mask_arguments(mask)),
        like=x,
        SCALE=mask.scale,
        AT_ONCE=_AT_ONCE,
    )
    return out


def sparse_forward(rows: SparseRows, weight: Tensor) -> Tensor:
    """rows [n, F] @ weight [F, D]."""
    return _product(rows.indptr, rows.columns, None, rows.values, weight)


def sparse_backward(rows: SparseRows, upstream: Tensor) -> Tensor:
    """Transposed rows [F, n] @ upstream [n, D]."""
    found = rows.by_column
    return _product(found.indptr, found.row, found.place, rows.values, upstream)


def _product(
    indptr: Tensor, index: Tensor, place: Tensor | None, values: Tensor, of: Tensor
) -> Tensor:
    of = of.contiguous()
    count, width = len(indptr) - 1, of.shape[1]
    parts = 1 if place is None else _PARTS
    out = of.new_empty(parts, count, width)
    columns = min(_COLUMNS, power_of_two(width))
    entries = at_once(columns, of.dtype)
    launch(
        programs.sum_stored,
        (count, parts, -(-width // columns)),
        *(indptr, index, values if place is None else place, values, of, out, count, width),
        like=of,
        HAS_PLACE=place is not None,
        PARTS=parts,
        COLUMNS=columns,
        ENTRIES=entries,
        num_warps=warps(entries * columns, of.dtype),
    )
    return out[0] if parts == 1 else out.sum(0)
