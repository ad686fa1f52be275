"""Calls the compiled attention kernel on tensors; `gat.cpp` says what the functions compute.

Only for tensors that `fits` accepts: on the CPU, float32 or float64, if there is a compiler.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gnnhpc.kernels.arguments import (
    REAL,
    call,
    fits_kernel,
    index_of,
    mask_argument,
    pointers,
    real,
    size,
    sizes,
    threads,
)

if TYPE_CHECKING:
    from gnnhpc.graphs.blocks import Block
    from gnnhpc.graphs.node_features import SparseRows
    from gnnhpc.kernels.mask import Mask


def fits(x: Tensor) -> bool:
    """Whether the kernel can compute on `x`; plain torch is used where it cannot."""
    return fits_kernel("gat", x)


def drop_rows(x: Tensor, rows: Tensor, mask: Mask) -> Tensor:
    """`x` [n, width] masked and scaled; its rows are `rows` [n] of the full graph."""
    x = x.contiguous()
    out = torch.empty_like(x)
    args = (mask_argument(mask), real(x, mask.scale), threads())
    if x.shape[1] == 1:
        call("gat", "drop_entries", x, *pointers(x, rows, out), size(len(rows)), *args)
    else:
        call("gat", "drop_rows", x, *pointers(x, rows, out), *sizes(x), *args)
    return out


def sparse_forward(rows: SparseRows, weight: Tensor) -> tuple[Tensor, bool]:
    """rows [n, F] @ weight [F, D], and whether all of it is finite."""
    out = weight.new_empty(rows.shape[0], weight.shape[1])
    finite = ctypes.c_bool(True)
    call(
        "gat",
        "sparse_forward",
        weight,
        *pointers(rows.indptr, rows.columns, rows.values),
        size(rows.shape[0]),
        *pointers(weight, out),
        size(weight.shape[1]),
        ctypes.byref(finite),
        threads(),
    )
    return out, finite.value


def sparse_backward(rows: SparseRows, upstream: Tensor, *, finite: bool) -> Tensor:
    """Transposed rows [F, n] @ upstream [n, D]; `finite` is what forward found."""
    width = upstream.shape[1]
    # Each part adds into its own copy of the result, so more parts than work cost time.
    parts = max(1, min(torch.get_num_threads(), len(rows.values) // rows.width))
    partial = upstream.new_empty(parts, rows.width, width)
    upstream = upstream.contiguous()
    call(
        "gat",
        "sparse_backward",
        upstream,
        *pointers(rows.indptr, rows.columns, rows.values),
        size(rows.shape[0]),
        *pointers(upstream, partial),
        size(rows.width),
        size(width),
        ctypes.c_bool(finite),
        ctypes.c_int(parts),
    )
    return partial[0]


@dataclass(frozen=True)
class Attended:
    """What a forward pass leaves for its backward: scores [rows, H], signed softmax [edges, H].

    Only if all outputs are `finite` may backward leave out rows without a gradient.
    """

    out: Tensor
    score_source: Tensor
    score_target: Tensor
    coefficient: Tensor
    finite: bool


def attend_forward(
    features: Tensor,
    attention: Tensor,
    bias: Tensor,
    block: Block,
    *,
    slope: float,
    average: bool,
    mask: Mask | None,
) -> Attended:
    """One attention layer on features [rows_in, C, H] with both vectors [2, C, H]."""
    _, channels, heads = features.shape
    width = channels if average else channels * heads
    empty = features.new_empty
    out, finite = empty(block.rows_out, width), ctypes.c_bool(True)
    saved = (
        empty(block.rows_in, heads),
        empty(block.rows_out, heads),
        empty(len(block.edge), heads),
    )
    layer = layer_argument(features, attention[0], attention[1], block, slope, average)
    call(
        "gat",
        "attend_forward",
        features,
        ctypes.byref(layer),
        *pointers(bias, out, *saved),
        mask_argument(mask),
        real(features, mask.scale if mask else 1.0),
        ctypes.byref(finite),
        index=block.source.dtype,
    )
    return Attended(out, *saved, finite.value)


def attend_backward(
    upstream: Tensor,
    features: Tensor,
    attention: Tensor,
    saved: tuple[Tensor, Tensor, Tensor],
    block: Block,
    *,
    slope: float,
    average: bool,
    scale: float,
    finite: bool,
) -> tuple[Tensor, Tensor]:
    """Gradients of the features [rows_in, C, H] and of both attention vectors [2, C, H].

    `saved` are a forward pass's two scores and coefficients; `finite` is what it found.
    """
    _, channels, heads = features.shape
    empty = features.new_empty
    upstream = upstream.contiguous()
    grad_features = torch.empty_like(features)
    grad_attention = empty(torch.get_num_threads(), 2, channels, heads)
    scratch = (
        empty(block.rows_out, channels, heads),
        empty(len(block.edge), 2, heads),
        empty(block.rows_out, heads),
    )
    layer = layer_argument(features, attention[0], attention[1], block, slope, average)
    transpose = block.transpose
    call(
        "gat",
        "attend_backward",
        features,
        ctypes.byref(layer),
        *pointers(transpose.indptr, transpose.edge, transpose.target, upstream, *saved),
        ctypes.c_bool(finite),
        real(features, scale),
        *pointers(*scratch, grad_features, grad_attention),
        index=index_of(block.source, transpose.indptr, transpose.edge, transpose.target),
    )
    return grad_features, grad_attention[0]


def layer_argument(
    features: Tensor,
    att_source: Tensor,
    att_target: Tensor,
    block: Block,
    slope: float,
    average: bool,
) -> ctypes.Structure:
    """The C++ side's `Layer` of features [rows_in, C, H]; `attention.h` has the other shapes."""
    rows_in, channels, heads = features.shape
    index_of(block.indptr, block.source, block.edge)
    layout = _layouts[features.dtype]
    return layout(
        *pointers(block.indptr, block.source, block.edge),
        rows_in,
        block.rows_out,
        heads,
        channels,
        *pointers(features, att_source, att_target),
        slope,
        average,
        torch.get_num_threads(),
    )


def _layer_type(real: Any) -> type[ctypes.Structure]:
    """The C++ side's `Layer<T, I>`, of any type of edges."""
    pointer, size = ctypes.c_void_p, ctypes.c_int64
    fields: list[tuple[str, Any]] = [(name, pointer) for name in ("indptr", "source", "edge")]
    fields += [(name, size) for name in ("rows_in", "rows_out", "heads", "channels")]
    fields += [(name, pointer) for name in ("features", "att_source", "att_target")]
    fields += [("slope", real), ("average", ctypes.c_bool), ("parts", ctypes.c_int)]
    return type("Layer", (ctypes.Structure,), {"_fields_": fields})


_layouts = {dtype: _layer_type(real) for dtype, real in REAL.items()}
