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
    from gnnhpc.kernels.neighbor_weights import NeighbourWeights

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
        *(indptr, index, values if place is None else place, values, of, out, count, width),
        like=of,
        HAS_PLACE=place is not None,
        PARTS=parts,
        COLUMNS=columns,
        ENTRIES=entries,
        num_warps=warps(entries * columns, of.dtype),
    )
    return out[0] if parts == 1 else out.sum(0)


def sum_forward(
    x: Tensor,
    block: Block,
    weights: NeighbourWeights,
    add: Tensor | None = None,
    bias: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Each target's weighted sum of x [rows_in, D], plus add [rows_out, D] and bias [D]."""
    out = x.new_empty(block.rows_out, x.shape[1]) if out is None else out
    ends = block.indptr, block.source, None
    _sum(x, ends, weights.source, weights.target, weights, out, block.rows_out, add, bias)
    return out


def sum_backward(
    upstream: Tensor, block: Block, weights: NeighbourWeights, out: Tensor | None = None
) -> Tensor:
    """The gradient [rows_in, D] of `sum_forward`'s input; `upstream` is [rows_out, D]."""
    grad = upstream.new_empty(block.rows_in, upstream.shape[1]) if out is None else out
    transpose = block.transpose
    ends = transpose.indptr, transpose.target, transpose.edge
    _sum(upstream, ends, weights.target, weights.source, weights, grad, block.rows_out)
    return grad


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


def _sum(
    x: Tensor,
    ends: tuple[Tensor, Tensor, Tensor | None],
    of_other: Tensor | None,
    of_row: Tensor | None,
    weights: NeighbourWeights,
    out: Tensor,
    rows_with_own: int,
    add: Tensor | None = None,
    bias: Tensor | None = None,
) -> None:
    rows, width = out.shape
    assert all(each is None or width == 1 or each.stride(1) == 1 for each in (x, add, out))
    assert len(out) == len(ends[0]) - 1
    factors = (of_other, of_row, weights.edge, bias)
    assert all(each is None or each.is_contiguous() for each in factors)
    columns = min(_COLUMNS, power_of_two(width))
    edges = at_once(columns, x.dtype)
    # What is not there is not read; Triton wants a tensor.
    given = [out if each is None else each for each in (of_other, of_row, add, bias)]
    of_edge = out if weights.edge is None else weights.edge
    indptr, other, number = ends
    edges_of = (indptr, other, other if number is None else number, of_edge)
    launch(
        programs.sum_rows,
        (rows, -(-width // columns)),
        *(x, x.stride(0), *edges_of, given[0], given[1]),
        *(given[2], given[2].stride(0), given[3], out, out.stride(0), rows_with_own, width),
        like=out,
        OWN=float(weights.own),
        LOOPS=weights.loops,
        HAS_EDGE=weights.edge is not None,
        HAS_NUMBER=number is not None,
        HAS_OTHER=of_other is not None,
        HAS_ROW=of_row is not None,
        HAS_ADD=add is not None,
        HAS_BIAS=bias is not None,
        COLUMNS=columns,
        EDGES=edges,
        num_warps=warps(edges * columns, x.dtype),
    )
