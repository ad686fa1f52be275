"""Passes over rows one by one, with gradients: dropout, and ReLU with dropout."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from gnnhpc.kernels.dispatch import backend, call, mask_argument
from gnnhpc.kernels.dropout_mask import Mask, number_entries

KERNEL = "rowwise"


def drop(x: Tensor, rows: Tensor, mask: Mask) -> Tensor:
    """`x` [n, width] with the entries of its `rows` [n] of the full graph masked and scaled."""
    result: Tensor = _Drop.apply(x, rows, mask)  # type: ignore[no-untyped-call]
    return result


def relu_drop(x: Tensor, rows: Tensor, mask: Mask | None) -> Tensor:
    """ReLU, then dropout, of `x` [n, width], whose rows are `rows` [n] of the full graph."""
    result: Tensor = _ReluDrop.apply(x, rows, mask)  # type: ignore[no-untyped-call]
    return result


def drop_rows(x: Tensor, rows: Tensor, mask: Mask) -> Tensor:
    """`drop` without a gradient."""
    code = backend(KERNEL, x)
    if code == "triton":
        from gnnhpc.kernels.triton import triton_aggregate

        return triton_aggregate.drop_rows(x, rows, mask)
    if code == "torch":
        return x * mask.weights(number_entries(rows, x.shape[1]), x.dtype)
    x = x.contiguous()
    out = torch.empty_like(x)
    args = (x, rows, out, *x.shape, mask_argument(mask), mask.scale)
    call(KERNEL, "drop_rows", *args, dtype=x.dtype)
    return out


def rows_with_gradient(upstream: Tensor) -> Tensor | None:
    """Numbers of the rows of `upstream` [n, D] that are not all zeros; None if over a quarter are,
    or if no kernel finds them.

    Where few nodes have labels, few rows have a gradient, and products need no others. To copy
    more of them takes as long as products with all.
    """
    if backend(KERNEL, upstream) != "c++":
        return None
    upstream = upstream.contiguous()
    marks = torch.empty(len(upstream), dtype=torch.bool)
    args = (upstream, upstream.stride(0), *upstream.shape, marks)
    call(KERNEL, "mark_rows", *args, dtype=upstream.dtype)
    rows = marks.nonzero().squeeze(1)
    return rows if 4 * len(rows) <= len(upstream) else None


def all_finite(x: Tensor) -> bool:
    """Whether no number of `x` is NaN or infinite; false where no kernel looks for them."""
    if backend(KERNEL, x) != "c++":
        return False
    finite = ctypes.c_bool()
    x = x.contiguous()
    call(KERNEL, "find_finite", x, x.numel(), ctypes.byref(finite), dtype=x.dtype)
    return finite.value


class _Drop(torch.autograd.Function):
    """Masks its input; backward computes the same mask for the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: Tensor, mask: Mask) -> Tensor:
        ctx.save_for_backward(rows)
        ctx.mask = mask
        return drop_rows(x, rows, mask)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        (rows,) = ctx.saved_tensors
        return drop_rows(upstream, rows, ctx.mask), None, None


class _ReluDrop(torch.autograd.Function):
    """Saves its output alone: where that is 0 there is no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: Tensor, mask: Mask | None) -> Tensor:
        ctx.scale = 1.0 if mask is None else mask.scale
        if backend(KERNEL, x) == "c++":
            x = x.contiguous()
            out = torch.empty_like(x)
            args = (x, rows, out, *x.shape, mask_argument(mask), ctx.scale)
            call(KERNEL, "relu_drop", *args, dtype=x.dtype)
        else:
            out = functional.relu(x)
            if mask is not None:
                out = drop_rows(out, rows, mask)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        (out,) = ctx.saved_tensors
        if backend(KERNEL, upstream) != "c++":
            return upstream * (out != 0) * ctx.scale, None, None
        upstream = upstream.contiguous()
        grad = torch.empty_like(upstream)
        args = (upstream, out, grad, out.numel(), ctx.scale)
        call(KERNEL, "relu_drop_gradient", *args, dtype=upstream.dtype)
        return grad, None, None
