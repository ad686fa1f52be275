"""Calls the compiled attention kernel on tensors; `gat.cpp` says what the functions compute.

Only for tensors that `fits` accepts: on the CPU, float32 or float64, if there is a compiler.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gnnhpc.kernels import calls
from gnnhpc.kernels.build import load_kernel

if TYPE_CHECKING:
    from gnnhpc.graphs.blocks import Block
    from gnnhpc.graphs.sparse_rows import SparseRows
    from gnnhpc.kernels.mask import Mask

_SUFFIX = {torch.float32: "f32", torch.float64: "f64"}
_REAL = {torch.float32: ctypes.c_float, torch.float64: ctypes.c_double}


class _Mask(ctypes.Structure):
    _fields_ = (
        ("first", ctypes.c_uint32),
        ("second", ctypes.c_uint32),
        ("threshold", ctypes.c_uint32),
    )


def fits(x: Tensor) -> bool:
    """Whether the kernel can compute on `x`; plain torch is used where it cannot."""
    return x.device.type == "cpu" and x.dtype in _SUFFIX and load_kernel("gat") is not None


def drop_rows(x: Tensor, rows: Tensor, mask: Mask) -> Tensor:
    """`x` [n, width] masked and scaled; its rows are `rows` [n] of the full graph."""
    x = x.contiguous()
    out = torch.empty_like(x)
    args = (_mask(mask), _real(x, mask.scale), _threads())
    if x.shape[1] == 1:
        _call("drop_entries", x, *_pointers(x, rows, out), _size(len(rows)), *args)
    else:
        _call("drop_rows", x, *_pointers(x, rows, out), *_sizes(x), *args)
    return out


def sparse_forward(rows: SparseRows, weight: Tensor) -> Tensor:
    """rows [n, F] @ weight [F, D]."""
    out = weight.new_empty(rows.shape[0], weight.shape[1])
    _call(
        "sparse_forward",
        weight,
        *_pointers(rows.indptr, rows.columns, rows.values),
        _size(rows.shape[0]),
        *_pointers(weight, out),
        _size(weight.shape[1]),
        _threads(),
    )
    return out


def sparse_backward(rows: SparseRows, upstream: Tensor) -> Tensor:
    """Transposed rows [F, n] @ upstream [n, D]."""
    width = upstream.shape[1]
    # Each part adds into its own copy of the result, so more parts than work cost time.
    parts = max(1, min(torch.get_num_threads(), len(rows.values) // rows.width))
    partial = upstream.new_empty(parts, rows.width, width)
    upstream = upstream.contiguous()
    _call(
        "sparse_backward",
        upstream,
        *_pointers(rows.indptr, rows.columns, rows.values),
        _size(rows.shape[0]),
        *_pointers(upstream, partial),
        _size(rows.width),
        _size(width),
        ctypes.c_int(parts),
    )
    return partial[0]


@dataclass(frozen=True)
class Attended:
    """What a forward pass leaves for its backward: scores [rows, H], signed softmax [edges, H]."""

    out: Tensor
    score_source: Tensor
    score_target: Tensor
    coefficient: Tensor


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
    result = Attended(
        empty(block.rows_out, width),
        empty(block.rows_in, heads),
        empty(block.rows_out, heads),
        empty(len(block.edge), heads),
    )
    layer = _layer(features, attention, block, slope, average)
    _call(
        "attend_forward",
        features,
        ctypes.byref(layer),
        *_pointers(bias, result.out, result.score_source, result.score_target, result.coefficient),
        _mask(mask),
        _real(features, mask.scale if mask else 1.0),
    )
    return result


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
) -> tuple[Tensor, Tensor]:
    """Gradients of the features [rows_in, C, H] and of both attention vectors [2, C, H].

    `saved` are a forward pass's two scores and coefficients.
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
    layer = _layer(features, attention, block, slope, average)
    transpose = block.transpose
    _call(
        "attend_backward",
        features,
        ctypes.byref(layer),
        *_pointers(transpose.indptr, transpose.edge, transpose.target, upstream, *saved),
        _real(features, scale),
        *_pointers(*scratch, grad_features, grad_attention),
    )
    return grad_features, grad_attention[0]


def _layer(
    features: Tensor, attention: Tensor, block: Block, slope: float, average: bool
) -> ctypes.Structure:
    rows_in, channels, heads = features.shape
    layout = _layouts[features.dtype]
    return layout(
        *_pointers(block.indptr, block.source, block.edge),
        rows_in,
        block.rows_out,
        heads,
        channels,
        *_pointers(features, attention[0], attention[1]),
        slope,
        average,
        torch.get_num_threads(),
    )


def _layer_type(real: Any) -> type[ctypes.Structure]:
    """The C++ side's `Layer<T>`."""
    pointer, size = ctypes.c_void_p, ctypes.c_int64
    fields: list[tuple[str, Any]] = [(name, pointer) for name in ("indptr", "source", "edge")]
    fields += [(name, size) for name in ("rows_in", "rows_out", "heads", "channels")]
    fields += [(name, pointer) for name in ("features", "att_source", "att_target")]
    fields += [("slope", real), ("average", ctypes.c_bool), ("parts", ctypes.c_int)]
    return type("Layer", (ctypes.Structure,), {"_fields_": fields})


_layouts = {dtype: _layer_type(real) for dtype, real in _REAL.items()}


def _call(name: str, like: Tensor, *args: Any) -> None:
    library = load_kernel("gat")
    assert library is not None
    calls.count_compiled(library, name)
    function: Callable[..., None] = getattr(library, f"{name}_{_SUFFIX[like.dtype]}")
    function(*args)


def _pointers(*tensors: Tensor) -> list[ctypes.c_void_p]:
    """Addresses of tensors, which must be contiguous."""
    for tensor in tensors:
        assert tensor.is_contiguous()
    return [ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors]


def _sizes(x: Tensor) -> list[ctypes.c_int64]:
    return [ctypes.c_int64(size) for size in x.shape]


def _size(count: int) -> ctypes.c_int64:
    return ctypes.c_int64(count)


def _threads() -> ctypes.c_int:
    return ctypes.c_int(torch.get_num_threads())


def _real(like: Tensor, value: float) -> Any:
    return _REAL[like.dtype](value)


def _mask(mask: Mask | None) -> _Mask:
    return _Mask(mask.first, mask.second, mask.threshold) if mask else _Mask(0, 0, 0)
