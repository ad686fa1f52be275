"""Calls of the compiled sums and maxima over neighbours; `aggregate.cpp` says what they compute."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gnnhpc.graphs.node_features import computed_dtype
from gnnhpc.kernels.dispatch import call, filled, index_of, structures

if TYPE_CHECKING:
    from gnnhpc.graphs.blocks import Block
    from gnnhpc.kernels.neighbor_weights import NeighbourWeights

KERNEL = "aggregate"
_SUMS = structures(
    pointers="indptr from_ number ids x add scale_in scale_out weight bias out",
    sizes="rows self_rows width x_stride add_stride out_stride",
    reals="own",
    flags="loops",
)


def sum_forward(
    x: Tensor,
    block: Block,
    weights: NeighbourWeights,
    add: Tensor | None = None,
    bias: Tensor | None = None,
    out: Tensor | None = None,
    ids: Tensor | None = None,
) -> Tensor:
    """Each target's weighted sum of x [rows_in, D], plus add [rows_out, D] and bias [D].

    `x`, `add` and `out` may be columns of wider tensors. With `ids` int64 [rows_in] row j of the
    input is row ids[j] of `x`, which may be kept in half precision.
    """
    if out is None:
        out = torch.empty(block.rows_out, x.shape[1], dtype=computed_dtype(x))
    total = _sum(
        *(x, out, block.rows_out, weights),
        indptr=block.indptr,
        from_=block.source,
        ids=ids,
        scale_in=weights.source,
        scale_out=weights.target,
        weight=weights.edge,
        bias=bias,
    )
    if add is not None:
        total.add, total.add_stride = columns(add)
    index = index_of(block.indptr, block.source, block.edge)
    call(KERNEL, "sum_rows", ctypes.byref(total), dtype=x.dtype, index=index)
    return out


def sum_backward(
    upstream: Tensor, block: Block, weights: NeighbourWeights, out: Tensor | None = None
) -> Tensor:
    """The gradient [rows_in, D] of `sum_forward`'s input; `upstream` is [rows_out, D].

    Both, and `out`, may be columns of wider tensors.
    """
    grad = upstream.new_empty(block.rows_in, upstream.shape[1]) if out is None else out
    transpose = block.transpose
    of_edge = {} if weights.edge is None else {"weight": weights.edge, "number": transpose.edge}
    total = _sum(
        *(upstream, grad, block.rows_out, weights),
        indptr=transpose.indptr,
        from_=transpose.target,
        scale_in=weights.target,
        scale_out=weights.source,
        **of_edge,
    )
    index = index_of(transpose.indptr, transpose.target)
    args = (ctypes.byref(total), len(upstream))
    call(KERNEL, "sum_gradient", *args, dtype=upstream.dtype, index=index)
    return grad


def max_forward(x: Tensor, block: Block) -> tuple[Tensor, Tensor]:
    """Each target's largest x [rows_in, D] of its neighbours, and the row it is of.

    [rows_out, D] each, the second int32: the first of several, -1 (and 0) without neighbours.
    """
    out = x.new_empty(block.rows_out, x.shape[1])
    winner = torch.empty(out.shape, dtype=torch.int32)
    index = index_of(block.indptr, block.source)
    sizes = (block.rows_out, x.shape[1])
    given = (block.indptr, block.source, *sizes, *columns(x))
    call(KERNEL, "max_rows", *given, out, winner, dtype=x.dtype, index=index)
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


def _sum(
    x: Tensor, out: Tensor, self_rows: int, weights: NeighbourWeights, /, **more: Tensor | None
) -> Any:
    """The C++ side's `Sum`; the caller keeps all tensors."""
    (at, x_stride), (into, out_stride) = columns(x), columns(out)
    sizes = {"rows": len(out), "self_rows": self_rows, "width": out.shape[1]}
    places = {"x": at, "x_stride": x_stride, "out": into, "out_stride": out_stride}
    factors = {"own": weights.own, "loops": weights.loops}
    return filled(_SUMS[out.dtype], **sizes, **places, **factors, **more)
