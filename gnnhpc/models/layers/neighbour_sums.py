"""Sums and maxima over neighbours as autograd functions: in C++ on a CPU, else Triton or torch.

An edge's weight follows from how many edges its nodes have in the graph as it is cut.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from gnnhpc.graphs.blocks import Block
from gnnhpc.graphs.node_features import IndexedRows, computed_dtype
from gnnhpc.kernels import aggregate as kernel
from gnnhpc.kernels import aggregate_torch, calls
from gnnhpc.kernels.gpu import here as gpu
from gnnhpc.kernels.mask import Mask
from gnnhpc.kernels.neighbour_weights import NeighbourWeights
from gnnhpc.models.context import Context
from gnnhpc.models.layers.dropout import active_mask, drop_rows


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
        if kernel.reads(x.features) and add is None and bias is None:
            return kernel.sum_forward(x.features, block, weights, ids=x.nodes)
        x = x.to_dense()
    result: Tensor = _WeightedSum.apply(x, add, bias, block, weights)  # type: ignore[no-untyped-call]
    return result


def sum_beside_own(x: Tensor | IndexedRows, block: Block, weights: NeighbourWeights) -> Tensor:
    """Each target's weighted sum of x [rows_in, D] and its own x, side by side: [rows_out, 2 D]."""
    if isinstance(x, IndexedRows):
        if kernel.reads(x.features):
            shape = (block.rows_out, 2 * x.shape[1])
            out = torch.empty(shape, dtype=computed_dtype(x.features))
            total, own = out.tensor_split(2, dim=1)
            kernel.sum_forward(x.features, block, weights, out=total, ids=x.nodes)
            kernel.copy_rows(x.features, x.nodes[: block.rows_out], own)
            return out
        x = x.to_dense()
    result: Tensor = _SumBesideOwn.apply(x, block, weights)  # type: ignore[no-untyped-call]
    return result


def sum_of_first_half(x: Tensor, bias: Tensor, block: Block, weights: NeighbourWeights) -> Tensor:
    """Of x [rows_in, 2 D] each target's weighted sum of the first D, plus its own last D, plus
    bias [D]: [rows_out, D].
    """
    result: Tensor = _SumOfFirstHalf.apply(x, bias, block, weights)  # type: ignore[no-untyped-call]
    return result


def largest(x: Tensor, block: Block) -> Tensor:
    """Each target's largest number of its neighbours' x [rows_in, D], column by column.

    0 without neighbours. The gradient goes to the first neighbour that has it.
    """
    result: Tensor = _Largest.apply(x, block)  # type: ignore[no-untyped-call]
    return result


def relu_dropout(x: Tensor, name: str, p: float, training: bool, context: Context) -> Tensor:
    """ReLU, then dropout of layer `name` with probability `p`, of [rows, width]."""
    mask = active_mask(name, p, training, context)
    rows = context.chunk.nodes[: len(x)]
    result: Tensor = _ReluDropout.apply(x, rows, mask)  # type: ignore[no-untyped-call]
    return result


def relu_of_product(x: Tensor, bias: Tensor) -> Tensor:
    """relu(x + bias) of a product [rows, D] that nothing else uses: it is overwritten."""
    result: Tensor = _ReluOfProduct.apply(x, bias)  # type: ignore[no-untyped-call]
    return result


def degree_weights(context: Context, block: Block, dtype: torch.dtype) -> NeighbourWeights:
    """GCN's weights of edges, self-loops included.

    Where neighbours are sampled, a node's sampled edges stand for all its edges: the weights scale
    their mean to that of all.
    """
    degree = context.chunk.degree[: block.rows_in].to(dtype)
    weights = NeighbourWeights.normalised(degree, block.rows_out)
    if not context.chunk.sampled:
        return weights
    assert weights.target is not None
    stands_for = degree[: block.rows_out] / block.indptr.diff()
    return dataclasses.replace(weights, target=weights.target * stands_for)


def mean_weights(block: Block, dtype: torch.dtype) -> NeighbourWeights:
    """The weights of a mean over neighbours, self-loops left out."""
    return NeighbourWeights.mean(block.indptr.diff().to(dtype), block.rows_out)


def _kernels_for(x: Tensor) -> Any:
    """The module that computes sums and maxima of `x`: C++, Triton or torch."""
    if kernel.fits(x):
        return kernel
    if gpu.fits(x):
        from gnnhpc.kernels.gpu import aggregate

        return aggregate
    return aggregate_torch


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
        found: Tensor = _kernels_for(x).sum_forward(x, block, weights, add, bias)
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        needs_x, needs_add, needs_bias = ctx.needs_input_grad[:3]
        compute = _kernels_for(upstream)
        grad = compute.sum_backward(upstream, ctx.block, ctx.weights) if needs_x else None
        of_bias = upstream.sum(0) if needs_bias else None
        return grad, upstream if needs_add else None, of_bias, None, None


class _SumBesideOwn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, block: Block, weights: NeighbourWeights) -> Tensor:
        ctx.block, ctx.weights = block, weights
        out = x.new_empty(block.rows_out, 2 * x.shape[1])
        total, own = out.tensor_split(2, dim=1)
        _kernels_for(x).sum_forward(x, block, weights, out=total)
        own.copy_(x[: block.rows_out])
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        total, own = upstream.tensor_split(2, dim=1)
        grad = _kernels_for(upstream).sum_backward(total, ctx.block, ctx.weights)
        grad[: ctx.block.rows_out] += own
        return grad, None, None


class _SumOfFirstHalf(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, bias: Tensor, block: Block, weights: NeighbourWeights
    ) -> Tensor:
        ctx.block, ctx.weights = block, weights
        total, own = x.tensor_split(2, dim=1)
        found: Tensor = _kernels_for(x).sum_forward(
            total, block, weights, own[: block.rows_out], bias
        )
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        grad = upstream.new_empty(ctx.block.rows_in, 2 * upstream.shape[1])
        total, own = grad.tensor_split(2, dim=1)
        _kernels_for(upstream).sum_backward(upstream, ctx.block, ctx.weights, out=total)
        own[: ctx.block.rows_out] = upstream
        own[ctx.block.rows_out :] = 0
        return grad, upstream.sum(0), None, None


class _Largest(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, block: Block) -> Tensor:
        out: Tensor
        out, winner = _kernels_for(x).max_forward(x, block)
        ctx.save_for_backward(winner)
        ctx.block = block
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        (winner,) = ctx.saved_tensors
        return _kernels_for(upstream).max_backward(upstream, winner, ctx.block), None


class _ReluOfProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        if kernel.fits(x):
            kernel.bias_relu(x, bias)
        else:
            x.add_(bias).relu_()
        ctx.save_for_backward(x)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor]:
        (out,) = ctx.saved_tensors
        fits = kernel.fits(upstream)
        grad = kernel.relu_drop_backward(upstream, out, None) if fits else upstream * (out != 0)
        return grad, grad.sum(0)


class _ReluDropout(torch.autograd.Function):
    """Saves its output alone: where that is 0 there is no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: Tensor, mask: Mask | None) -> Tensor:
        out: Tensor
        if kernel.fits(x):
            out = kernel.relu_drop(x, rows, mask)
        else:
            if not gpu.fits(x):
                calls.count(calls.TORCH, "relu_drop")
            out = functional.relu(x)
            if mask is not None:
                out = drop_rows(out, rows, mask)
        ctx.save_for_backward(out)
        ctx.mask = mask
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        (out,) = ctx.saved_tensors
        mask: Mask | None = ctx.mask
        if kernel.fits(upstream):
            return kernel.relu_drop_backward(upstream, out, mask), None, None
        return upstream * (out != 0) * (mask.scale if mask else 1.0), None, None
