"""Calls the compiled sums and maxima over neighbours; `aggregate.cpp` says what they compute.

Only for tensors that `fits` accepts: on the CPU, float32 or float64, if there is a compiler.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gnnhpc.graphs.node_features import computed_dtype
from gnnhpc.kernels.arguments import (
    REAL,
    call,
    fits_kernel,
    index_of,
    mask_argument,
    pointers,
    reads_kernel,
    real,
    size,
    sizes,
    threads,
)

if TYPE_CHECKING:
    from gnnhpc.graphs.blocks import Block
    from gnnhpc.kernels.mask import Mask
    from gnnhpc.kernels.neighbour_weights import NeighbourWeights


def fits(x: Tensor) -> bool:
    """Whether the kernel can compute on `x`; plain torch is used where it cannot."""
    return fits_kernel("aggregate", x)


def reads(features: Tensor) -> bool:
    """Whether `sum_forward` and `copy_rows` read `features` in place, half precision too."""
    return reads_kernel("aggregate", features, "copy_rows")


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
    _sum(
        (block.indptr, block.source),
        (x, add, bias),
        (weights.source, weights.target),
        weights,
        out,
        block.rows_out,
        ids=ids,
    )
    return out


def sum_backward(
    upstream: Tensor, block: Block, weights: NeighbourWeights, out: Tensor | None = None
) -> Tensor:
    """The gradient [rows_in, D] of `sum_forward`'s input; `upstream` is [rows_out, D].

    Both, and `out`, may be columns of wider tensors.
    """
    grad = upstream.new_empty(block.rows_in, upstream.shape[1]) if out is None else out
    transpose = block.transpose
    _sum(
        (transpose.indptr, transpose.target),
        (upstream, None, None),
        (weights.target, weights.source),
        weights,
        grad,
        block.rows_out,
        gradient=True,
    )
    return grad


def copy_rows(x: Tensor, ids: Tensor, out: Tensor) -> None:
    """Row k of `out` [n, D] becomes row ids[k] of `x`; both may be columns of wider tensors.

    `x` may be kept in half precision, and `out` is then in single.
    """
    given = x if _has_rows(x) else x.contiguous()
    call(
        "aggregate",
        "copy_rows",
        x,
        *_rows(given),
        *pointers(ids),
        *sizes(out),
        *_rows(out),
        threads(),
    )


def rows_with_gradient(upstream: Tensor) -> Tensor | None:
    """Numbers of the rows of `upstream` [n, D] that are not all zeros; None if over a quarter are.

    Where few nodes have labels, few rows have a gradient, and products need no others. To copy
    more of them takes as long as products with all.
    """
    upstream = upstream.contiguous()
    marks = torch.empty(len(upstream), dtype=torch.bool)
    call(
        "aggregate",
        "mark_rows",
        upstream,
        *pointers(upstream),
        *sizes(upstream),
        *pointers(marks),
        threads(),
    )
    rows = marks.nonzero().squeeze(1)
    return rows if 4 * len(rows) <= len(upstream) else None


def all_finite(x: Tensor) -> bool:
    """Whether no number of `x` is NaN or infinite."""
    finite = ctypes.c_bool()
    x = x.contiguous()
    call(
        "aggregate",
        "find_finite",
        x,
        *pointers(x),
        size(x.numel()),
        ctypes.byref(finite),
        threads(),
    )
    return finite.value


def max_forward(x: Tensor, block: Block) -> tuple[Tensor, Tensor]:
    """Each target's largest x [rows_in, D] of its neighbours, and the row it is of.

    [rows_out, D] each, the second int32: the first of several, -1 (and 0) without neighbours.
    """
    out = x.new_empty(block.rows_out, x.shape[1])
    winner = torch.empty(out.shape, dtype=torch.int32)
    call(
        "aggregate",
        "max_rows",
        x,
        *pointers(block.indptr, block.source),
        size(block.rows_out),
        size(x.shape[1]),
        *_rows(x),
        *pointers(out, winner),
        threads(),
        index=index_of(block.indptr, block.source),
    )
    return out, winner


def max_backward(upstream: Tensor, winner: Tensor, block: Block) -> Tensor:
    """The gradient [rows_in, D] of `max_forward`'s input."""
    upstream = upstream.contiguous()
    grad = upstream.new_empty(block.rows_in, upstream.shape[1])
    transpose = block.transpose
    call(
        "aggregate",
        "max_gradient",
        upstream,
        *pointers(transpose.indptr, transpose.target),
        *sizes(grad),
        *pointers(upstream, winner, grad),
        threads(),
        index=index_of(transpose.indptr, transpose.target),
    )
    return grad


def relu_drop(x: Tensor, rows: Tensor, mask: Mask | None) -> Tensor:
    """ReLU, then dropout, of `x` [n, width]; its rows are `rows` [n] of the full graph."""
    x = x.contiguous()
    out = torch.empty_like(x)
    scale = real(x, mask.scale if mask else 1.0)
    call(
        "aggregate",
        "relu_drop",
        x,
        *pointers(x, rows, out),
        *sizes(x),
        mask_argument(mask),
        scale,
        threads(),
    )
    return out


def bias_relu(x: Tensor, bias: Tensor) -> None:
    """`x` [n, width] becomes relu(x + bias)."""
    call("aggregate", "bias_relu", x, *pointers(x, bias), *sizes(x), threads())


def relu_drop_backward(upstream: Tensor, out: Tensor, mask: Mask | None) -> Tensor:
    """The gradient of `relu_drop`'s input, from what it gave."""
    upstream = upstream.contiguous()
    grad = torch.empty_like(upstream)
    scale = real(upstream, mask.scale if mask else 1.0)
    call(
        "aggregate",
        "relu_drop_gradient",
        upstream,
        *pointers(upstream, out, grad),
        size(out.numel()),
        scale,
        threads(),
    )
    return grad


def _sum(
    edges: tuple[Tensor, Tensor],
    given: tuple[Tensor, Tensor | None, Tensor | None],
    scales: tuple[Tensor | None, Tensor | None],
    weights: NeighbourWeights,
    out: Tensor,
    own_rows: int,
    *,
    gradient: bool = False,
    ids: Tensor | None = None,
) -> None:
    x, add, bias = given
    columns = x if _has_rows(x) else x.contiguous()
    total = ctypes.byref(_structures[computed_dtype(x)](
        *pointers(*edges), _pointer(ids), len(out), own_rows, out.shape[1], *_rows(columns),
        *_rows(add), *(_pointer(each) for each in (*scales, bias)), *_rows(out), weights.own,
        weights.loops,
        torch.get_num_threads(),
    ))  # fmt: skip
    if gradient:
        call("aggregate", "sum_gradient", x, total, size(len(x)), index=index_of(*edges))
    else:
        call("aggregate", "sum_rows", x, total, index=index_of(*edges))


def _rows(x: Tensor | None) -> tuple[ctypes.c_void_p, ctypes.c_int64]:
    """First address and numbers from row to row."""
    if x is None:
        return ctypes.c_void_p(None), ctypes.c_int64(0)
    assert _has_rows(x)
    return ctypes.c_void_p(x.data_ptr()), ctypes.c_int64(x.stride(0))


def _has_rows(x: Tensor) -> bool:
    """Whether a row's numbers lie side by side; torch may give any stride to a single column."""
    return x.stride(1) == 1 or x.shape[1] == 1


def _pointer(x: Tensor | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None) if x is None else pointers(x)[0]


def _structure(number: Any) -> type[ctypes.Structure]:
    """The C++ side's `Sum<T, I, S>`, of any types of edges and features."""
    pointer, count = ctypes.c_void_p, ctypes.c_int64
    fields: list[tuple[str, Any]] = [(name, pointer) for name in ("indptr", "from", "ids")]
    fields += [(name, count) for name in ("rows", "own_rows", "width")]
    fields += [("x", pointer), ("x_stride", count), ("add", pointer), ("add_stride", count)]
    fields += [(name, pointer) for name in ("scale_in", "scale_out", "bias")]
    fields += [("out", pointer), ("out_stride", count), ("own", number)]
    fields += [("loops", ctypes.c_bool), ("parts", ctypes.c_int)]
    return type("Sum", (ctypes.Structure,), {"_fields_": fields})


_structures = {dtype: _structure(number) for dtype, number in REAL.items()}
