"""Calls of the compiled sums and maxima over neighbours; `aggregate.cpp` says what they compute."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gnnhpc.graphs.node_features import computed_dtype
from gnnhpc.kernels.dispatch import call, filled, index_of, structures

if TYPE_CHECKING:
    from gnnhpc.graphs.blocks import Block
    from gnnhpc.kernels.neighbor_weights import RowSums

KERNEL = "aggregate"
_SUMS = structures(
    pointers="indptr from_ number ids x add scale_in scale_out weight bias out",
    sizes="rows self_rows width x_stride add_stride out_stride",
    reals="own",
    flags="loops",
)


def sum_rows(
    x: Tensor,
    sums: RowSums,
    add: Tensor | None = None,
    bias: Tensor | None = None,
    out: Tensor | None = None,
    ids: Tensor | None = None,
) -> Tensor:
    """Each row's weighted sum of x [rows at other ends, D], plus add [rows, D] and bias [D].

    `x`, `add` and `out` may be columns of wider tensors. With `ids` int64 row j of the input is row
    ids[j] of `x`, which may be kept in half precision.
    """
    if out is None:
        out = torch.empty(sums.rows, x.shape[1], dtype=computed_dtype(x))
    weights, indptr = sums.weights, sums.edges.indptr
    (at, x_stride), (into, out_stride) = columns(x), columns(out)
    added, add_stride = (None, 0) if add is None else columns(add)
    total = filled(
        _SUMS[out.dtype],
        indptr=indptr,
        from_=sums.others,
        number=None if weights.edge is None else sums.number,
        ids=ids,
        x=at,
        add=added,
        scale_in=sums.of_others,
        scale_out=sums.of_rows,
        weight=weights.edge,
        bias=bias,
        out=into,
        rows=sums.rows,
        self_rows=sums.rows_with_own,
        width=out.shape[1],
        x_stride=x_stride,
        add_stride=add_stride,
        out_stride=out_stride,
        own=weights.own,
        loops=weights.loops,
    )
    types = {"dtype": x.dtype, "index": index_of(indptr, sums.others, sums.rows_of)}
    if sums.number is None:
        call(KERNEL, "sum_rows", ctypes.byref(total), **types)
    else:
        # Most rows of a gradient may be zeros.
        call(KERNEL, "sum_gradient", ctypes.byref(total), len(x), **types)
    return out


def max_forward(x: Tensor, block: Block) -> tuple[Tensor, Tensor]:
    """Each target's largest x [rows_in, D] of its neighbours, and the row it is of.

    [rows_out, D] each, the second int32: the first of several, -1 (and 0) without neighbours.
    """
    out = x.new_empty(block.rows_out, x.shape[1])
    winner = torch.empty(out.shape, dtype=torch.int32)
    index = index_of(block.indptr, block.source)
    sizes = (block.rows_out, x.shape[1])
    inputs = (block.indptr, block.source, *sizes, *columns(x))
    call(KERNEL, "max_rows", *inputs, out, winner, dtype=x.dtype, index=index)
    return out, winner


def max_backward(upstream: Tensor, winner: Tensor, block: Block) -> Tensor:
    """The gradient [rows_in, D] of `max_forward`'s input."""
    upstream = upstream.contiguous()
    grad = upstream.new_empty(block.rows_in, upstream.shape[1])
    edges = (block.transpose.indptr, block.transpose.target)
    args = (*edges, *grad.shape, upstream, winner, grad)
    call(KERNEL, "max_gradient", *args, dtype=upstream.dtype, index=index_of(*edges))
    return grad


def copy_rows(x: Tensor, ids: Tensor, out: Tensor) -> None:
    """Row k of `out` [n, D] becomes row ids[k] of `x`; both may be columns of wider tensors.

    `x` may be kept in half precision, and `out` is then in single.
    """
    call("rowwise", "copy_rows", *columns(x), ids, *out.shape, *columns(out), dtype=x.dtype)


def columns(x: Tensor) -> tuple[ctypes.c_void_p, int]:
    """First address, and numbers from row to row, of a tensor whose rows' numbers lie side by side;
    torch may give any stride to a single column."""
    assert x.stride(1) == 1 or x.shape[1] == 1
    return ctypes.c_void_p(x.data_ptr()), x.stride(0)
