"""Calls the compiled product of dense features after dropout; `dropped_products.h` says how."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from gnnhpc.kernels.arguments import (
    call,
    mask_argument,
    pointers,
    reads_kernel,
    real,
    size,
    threads,
)
from gnnhpc.kernels.dropped_rows import DroppedRows


def reads(features: Tensor) -> bool:
    """Whether the product reads `features` in place, half precision too."""
    return reads_kernel("gat", features, "dropped_forward")


def dropped_forward(x: DroppedRows, weight: Tensor) -> tuple[Tensor, bool]:
    """`x` [n, F] after dropout @ weight [F, D], and whether all of it is finite."""
    out = weight.new_empty(len(x), weight.shape[1])
    finite = ctypes.c_bool(True)
    call(
        "gat",
        "dropped_forward",
        x.x,
        *_dense_rows(x),
        *pointers(weight, out),
        size(weight.shape[1]),
        mask_argument(x.mask),
        real(weight, x.scale),
        ctypes.byref(finite),
        threads(),
    )
    return out, finite.value


def dropped_backward(x: DroppedRows, upstream: Tensor, *, finite: bool) -> Tensor:
    """`x` [n, F] after dropout, transposed, @ upstream [n, D]; `finite` is what forward found."""
    upstream = upstream.contiguous()
    width = upstream.shape[1]
    partial = upstream.new_empty(torch.get_num_threads(), x.shape[1], width)
    call(
        "gat",
        "dropped_backward",
        x.x,
        *_dense_rows(x),
        *pointers(upstream, partial),
        size(width),
        mask_argument(x.mask),
        real(upstream, x.scale),
        ctypes.c_bool(finite),
        ctypes.c_int(len(partial)),
    )
    return partial[0]


def _dense_rows(x: DroppedRows) -> tuple[Any, ...]:
    """Features, which of their rows, the rows' numbers in the full graph, and sizes."""
    at = pointers(x.at)[0] if x.at is not None else ctypes.c_void_p()
    features, ids = pointers(x.x, x.rows)
    return features, at, ids, size(len(x)), size(x.shape[1])
