"""Products of stored features on a GPU, to the same bits each time; cuSPARSE's are not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from gnnhpc.kernels import calls
from gnnhpc.kernels.gpu.here import at_once, launch, power_of_two, warps
from gnnhpc.kernels.gpu.programs import stored_products as programs

if TYPE_CHECKING:
    from gnnhpc.graphs.node_features import SparseRows

_COLUMNS = 128
"""At most, of a row that a program computes."""
_PARTS = 16
"""That the sum of a feature is cut into, always: it has entries in thousands of rows, and there are
few features."""


def sparse_forward(rows: SparseRows, weight: Tensor) -> Tensor:
    """rows [n, F] @ weight [F, D]."""
    calls.count(calls.TRITON, "sparse_forward")
    return _product(rows.indptr, rows.columns, None, rows.values, weight)


def sparse_backward(rows: SparseRows, upstream: Tensor) -> Tensor:
    """Transposed rows [F, n] @ upstream [n, D]."""
    calls.count(calls.TRITON, "sparse_backward")
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
