"""Maxima over neighbours on a GPU, and their gradients, as `aggregate_torch` has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gnnhpc.kernels import calls
from gnnhpc.kernels.gpu.here import launch, power_of_two
from gnnhpc.kernels.gpu.programs import neighbour_maxima as programs

if TYPE_CHECKING:
    from gnnhpc.graphs.blocks import Block

_COLUMNS = 128
"""At most, of a row that a program computes, in one warp."""


def max_forward(x: Tensor, block: Block) -> tuple[Tensor, Tensor]:
    """Each target's largest x [rows_in, D] of its neighbours, and the row it is of (int32)."""
    calls.count(calls.TRITON, "max_rows")
    assert len(x) == block.rows_in
    x = x.contiguous()
    width = x.shape[1]
    out = x.new_empty(block.rows_out, width)
    winner = torch.empty_like(out, dtype=torch.int32)
    columns = min(_COLUMNS, power_of_two(width))
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
    calls.count(calls.TRITON, "max_rows_backward")
    upstream = upstream.contiguous()
    width, transpose = upstream.shape[1], block.transpose
    grad = upstream.new_empty(block.rows_in, width)
    columns = min(_COLUMNS, power_of_two(width))
    launch(
        programs.max_rows_backward,
        (block.rows_in, -(-width // columns)),
        *(upstream, winner, transpose.indptr, transpose.target, grad, width),
        like=upstream,
        COLUMNS=columns,
        num_warps=1,
    )
    return grad
