"""Rows taken to a block's edges and edges summed into rows, in torch, with gradients.

Each is the other's gradient. Sums run over sorted segments: without atomic additions, and so the
same each time on a GPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gnnhpc.graphs.blocks import Block
from gnnhpc.kernels.segments import of_rows


def of_sources(x: Tensor, block: Block) -> Tensor:
    """Each edge's row of `x` [rows_in, ...] at its source: [edges, ...]."""
    found: Tensor = _OfSources.apply(x, block)  # type: ignore[no-untyped-call]
    return found


def of_targets(x: Tensor, block: Block) -> Tensor:
    """Each edge's row of `x` [rows_out, ...] at its target: [edges, ...]."""
    found: Tensor = _OfTargets.apply(x, block)  # type: ignore[no-untyped-call]
    return found


def summed(values: Tensor, block: Block) -> Tensor:
    """The sum of `values` [edges, ...] over each target's edges: [rows_out, ...]."""
    found: Tensor = _Summed.apply(values, block)  # type: ignore[no-untyped-call]
    return found


def largest(values: Tensor, block: Block) -> Tensor:
    """The largest of `values` [edges, ...] of each target's edges: [rows_out, ...]; no gradient."""
    return of_rows(values.detach(), block.indptr.long(), "max")


class _OfSources(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, block: Block) -> Tensor:
        ctx.block = block
        return x[block.source]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        transpose = ctx.block.transpose
        return of_rows(upstream[transpose.edge], transpose.indptr.long(), "sum"), None


class _OfTargets(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, block: Block) -> Tensor:
        ctx.block = block
        return x[block.target]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        return of_rows(upstream.contiguous(), ctx.block.indptr.long(), "sum"), None


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, block: Block) -> Tensor:
        ctx.block = block
        return of_rows(values.contiguous(), block.indptr.long(), "sum")

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        return upstream[ctx.block.target], None
