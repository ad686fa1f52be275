"""Sums and maxima over neighbours, with gradients: in C++ on a CPU, else in Triton or torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gnnhpc.graphs.blocks import Block
from gnnhpc.graphs.node_features import IndexedRows, computed_dtype
from gnnhpc.kernels import cpp_aggregate
from gnnhpc.kernels.dispatch import backend
from gnnhpc.kernels.neighbor_weights import NeighbourWeights, by_source, by_target
from gnnhpc.kernels.torch import torch_aggregate


def weighted_sum(
    x: Tensor | IndexedRows,
    block: Block,
    weights: NeighbourWeights,
    add: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Each target's weighted sum of x [rows_in, D], plus add [rows_out, D] and bias [D].

    `IndexedRows` are read where they lie, without a copy.
    """
    if isinstance(x, IndexedRows):
        if _code(x.features) is cpp_aggregate and add is None and bias is None:
            return cpp_aggregate.sum_rows(x.features, by_target(block, weights), ids=x.nodes)
        x = x.to_dense()
    result: Tensor = _WeightedSum.apply(x, add, bias, block, weights)  # type: ignore[no-untyped-call]
    return result


def sum_beside_own(x: Tensor | IndexedRows, block: Block, weights: NeighbourWeights) -> Tensor:
    """Each target's weighted sum of x [rows_in, D] and its own x, side by side: [rows_out, 2 D]."""
    if isinstance(x, IndexedRows):
        if _code(x.features) is cpp_aggregate:
            shape = (block.rows_out, 2 * x.shape[1])
            out = torch.empty(shape, dtype=computed_dtype(x.features))
            total, own = out.tensor_split(2, dim=1)
            sums = by_target(block, weights)
            cpp_aggregate.sum_rows(x.features, sums, out=total, ids=x.nodes)
            cpp_aggregate.copy_rows(x.features, x.nodes[: block.rows_out], own)
            return out
        x = x.to_dense()
    result: Tensor = _SumBesideOwn.apply(x, block, weights)  # type: ignore[no-untyped-call]
    return result


def sum_of_first_half(x: Tensor, bias: Tensor, block: Block, weights: NeighbourWeights) -> Tensor:
    """For x [rows_in, 2 D]: each target's weighted sum of the first D, plus its last D, plus bias
    [D], as [rows_out, D]."""
    result: Tensor = _SumOfFirstHalf.apply(x, bias, block, weights)  # type: ignore[no-untyped-call]
    return result


def largest(x: Tensor, block: Block) -> Tensor:
    """Each target's largest number of its neighbours' x [rows_in, D], column by column.

    0 without neighbours. The gradient goes to the first neighbour that has it.
    """
    result: Tensor = _Largest.apply(x, block)  # type: ignore[no-untyped-call]
    return result


def _code(x: Tensor) -> Any:
    """The module that computes sums and maxima of `x`."""
    code = backend(cpp_aggregate.KERNEL, x.new_empty(0, dtype=computed_dtype(x)))
    if code == "triton":
        from gnnhpc.kernels.triton import triton_aggregate

        return triton_aggregate
    return cpp_aggregate if code == "c++" else torch_aggregate


def _by_row(x: Tensor) -> Tensor:
    """A tensor whose rows' numbers lie side by side, perhaps as columns of a wider one."""
    return x if x.stride(1) == 1 or x.shape[1] == 1 else x.contiguous()


class _WeightedSum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        add: Tensor | None,
        bias: Tensor | None,
        block: Block,
        weights: NeighbourWeights,
    ) -> Tensor:
        ctx.block, ctx.weights = block, weights
        sums: Tensor = _code(x).sum_rows(_by_row(x), by_target(block, weights), add, bias)
        return sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        needs_x, needs_add, needs_bias = ctx.needs_input_grad[:3]
        of_x = None
        if needs_x:
            sums = by_source(ctx.block, ctx.weights)
            of_x = _code(upstream).sum_rows(_by_row(upstream), sums)
        of_bias = upstream.sum(0) if needs_bias else None
        return of_x, upstream if needs_add else None, of_bias, None, None


class _SumBesideOwn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, block: Block, weights: NeighbourWeights) -> Tensor:
        ctx.block, ctx.weights = block, weights
        out = x.new_empty(block.rows_out, 2 * x.shape[1])
        total, own = out.tensor_split(2, dim=1)
        _code(x).sum_rows(_by_row(x), by_target(block, weights), out=total)
        own.copy_(x[: block.rows_out])
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        total, own = _by_row(upstream).tensor_split(2, dim=1)
        grad: Tensor = _code(upstream).sum_rows(total, by_source(ctx.block, ctx.weights))
        grad[: ctx.block.rows_out] += own
        return grad, None, None


class _SumOfFirstHalf(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, bias: Tensor, block: Block, weights: NeighbourWeights
    ) -> Tensor:
        ctx.block, ctx.weights = block, weights
        total, own = _by_row(x).tensor_split(2, dim=1)
        sums = by_target(block, weights)
        out: Tensor = _code(x).sum_rows(total, sums, own[: block.rows_out], bias)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        rows_out = ctx.block.rows_out
        grad = upstream.new_empty(ctx.block.rows_in, 2 * upstream.shape[1])
        total, own = grad.tensor_split(2, dim=1)
        sums = by_source(ctx.block, ctx.weights)
        _code(upstream).sum_rows(_by_row(upstream), sums, out=total)
        own[:rows_out] = upstream
        own[rows_out:].zero_()
        return grad, upstream.sum(0), None, None


class _Largest(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, block: Block) -> Tensor:
        out: Tensor
        out, winner = _code(x).max_forward(_by_row(x), block)
        ctx.save_for_backward(winner)
        ctx.block = block
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        (winner,) = ctx.saved_tensors
        return _code(upstream).max_backward(upstream, winner, ctx.block), None
