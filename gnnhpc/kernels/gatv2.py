"""Calls the compiled attention kernel of GATv2 on tensors; `gatv2.cpp` says what it computes.

Only for tensors that `fits` accepts: on the CPU, float32 or float64, if there is a compiler.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gnnhpc.kernels.arguments import (
    call,
    fits_kernel,
    index_of,
    mask_argument,
    pointers,
    real,
)
from gnnhpc.kernels.gat import layer_argument

if TYPE_CHECKING:
    from gnnhpc.graphs.blocks import Block
    from gnnhpc.kernels.mask import Mask


def fits(x: Tensor) -> bool:
    """Whether the kernel can compute on `x`; plain torch is used where it cannot."""
    return fits_kernel("gatv2", x)


def attend_forward(
    source: Tensor,
    target: Tensor,
    attention: Tensor,
    bias: Tensor,
    block: Block,
    *,
    slope: float,
    average: bool,
    mask: Mask | None,
) -> tuple[Tensor, Tensor, bool]:
    """Output, and for backward the signed softmax [edges, H] and whether the output is finite.

    `source` is [rows_in, C, H], `target` [rows_out, C, H], `attention` [C, H].
    """
    _, channels, heads = source.shape
    width = channels if average else channels * heads
    out = source.new_empty(block.rows_out, width)
    coefficient = source.new_empty(len(block.edge), heads)
    finite = ctypes.c_bool(True)
    layer = layer_argument(source, attention, target, block, slope, average)
    call(
        "gatv2",
        "attend_forward",
        source,
        ctypes.byref(layer),
        *pointers(bias, out, coefficient),
        mask_argument(mask),
        real(source, mask.scale if mask else 1.0),
        ctypes.byref(finite),
        index=block.source.dtype,
    )
    return out, coefficient, finite.value


def attend_backward(
    upstream: Tensor,
    source: Tensor,
    target: Tensor,
    attention: Tensor,
    coefficient: Tensor,
    block: Block,
    *,
    slope: float,
    average: bool,
    scale: float,
    finite: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of `source`, `target` and `attention`, of their shapes.

    `finite` is what forward found.
    """
    _, channels, heads = source.shape
    empty = source.new_empty
    upstream = upstream.contiguous()
    gradients = (torch.empty_like(source), torch.empty_like(target))
    grad_attention = empty(torch.get_num_threads(), channels, heads)
    scratch = (empty(block.rows_out, channels, heads), empty(len(block.edge), 2, heads))
    layer = layer_argument(source, attention, target, block, slope, average)
    transpose = block.transpose
    call(
        "gatv2",
        "attend_backward",
        source,
        ctypes.byref(layer),
        *pointers(transpose.indptr, transpose.edge, transpose.target, upstream, coefficient),
        ctypes.c_bool(finite),
        real(source, scale),
        *pointers(*scratch, *gradients, grad_attention),
        index=index_of(block.source, transpose.indptr, transpose.edge, transpose.target),
    )
    return *gradients, grad_attention[0]
