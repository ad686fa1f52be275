"""Launches of `programs`: dropout of rows, products of stored features, sums and maxima over
neighbours, and their gradients.

All of them have the same bits each time, which cuSPARSE's products have not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gnnhpc.kernels.dropout_mask import Mask
from gnnhpc.kernels.triton import programs
from gnnhpc.kernels.triton.launch import at_once, launch, mask_arguments, power_of_two, warps

if TYPE_CHECKING:
    from gnnhpc.graphs.blocks import Block
    from gnnhpc.graphs.node_features import SparseRows
    from gnnhpc.kernels.neighbor_weights import RowSums

_COLUMNS, _OF_MAXIMA, _OF_STORED = 256, 128, 128
"""The most numbers of a row that a program computes; maxima take one warp."""
_AT_ONCE = 1024
"""Numbers that a program of dropout computes."""
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
    columns = min(_OF_STORED, power_of_two(width))
    entries = at_once(columns, of.dtype)
    launch(
        programs.sum_stored,
        (count, parts, -(-width // columns)),
        *(indptr, index, place, values, of, out, count, width),
        like=of,
        PARTS=parts,
        COLUMNS=columns,
        ENTRIES=entries,
        num_warps=warps(entries * columns, of.dtype),
    )
    return out[0] if parts == 1 else out.sum(0)


def sum_rows(
    x: Tensor,
    sums: RowSums,
    add: Tensor | None = None,
    bias: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Each row's weighted sum of x [rows at other ends, D], plus add [rows, D] and bias [D]."""
    out = x.new_empty(sums.rows, x.shape[1]) if out is None else out
    assert len(out) == sums.rows
    weights, (rows, width) = sums.weights, out.shape
    assert all(each is None or width == 1 or each.stride(1) == 1 for each in (x, add, out))
    factors = (sums.of_others, sums.of_rows, weights.edge, bias)
    assert all(each is None or each.is_contiguous() for each in factors)
    columns = min(_COLUMNS, power_of_two(width))
    edges = at_once(columns, x.dtype)
    launch(
        programs.sum_rows,
        (rows, -(-width // columns)),
        *(x, x.stride(0), sums.edges.indptr, sums.others),
        *(None if weights.edge is None else sums.number, weights.edge),
        *(sums.of_others, sums.of_rows, add, 0 if add is None else add.stride(0), bias),
        *(out, out.stride(0), sums.rows_with_own, width),
        like=out,
        OWN=float(weights.own),
        LOOPS=weights.loops,
        COLUMNS=columns,
        EDGES=edges,
        num_warps=warps(edges * columns, x.dtype),
    )
    return out


def max_forward(x: Tensor, block: Block) -> tuple[Tensor, Tensor]:
    """Each target's largest x [rows_in, D] of its neighbours, and the row it is of (int32)."""
    assert len(x) == block.rows_in
    x = x.contiguous()
    width = x.shape[1]
    out = x.new_empty(block.rows_out, width)
    winner = torch.empty_like(out, dtype=torch.int32)
    columns = min(_OF_MAXIMA, power_of_two(width))
    launch(
        programs.max_rows,
        (block.rows_out, -(-width // columns)),
        *(x, block.indptr, block.source, out, winner, width),
        like=x,
        COLUMNS=columns,
        num_warps=1,
    )
    return out, winner


def max_backward(upstream: Tensor, winner: Tensor, block: Block) -> Tensor:
    """The gradient [rows_in, D] of `max_forward`'s input."""
    upstream = upstream.contiguous()
    width, transpose = upstream.shape[1], block.transpose
    grad = upstream.new_empty(block.rows_in, width)
    columns = min(_OF_MAXIMA, power_of_two(width))
    launch(
        programs.max_rows_backward,
        (block.rows_in, -(-width // columns)),
        *(upstream, winner, transpose.indptr, transpose.target, grad, width),
        like=upstream,
        COLUMNS=columns,
        num_warps=1,
    )
    return grad
