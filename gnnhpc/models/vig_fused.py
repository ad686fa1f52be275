"""ViG's Grapher and FFN without their intermediates: same parameters, same function, same gradients.

A layer collapses to a small network a node (`gnnhpc.models.vig_fold` says why), which the kernels
evaluate piece by piece with the hidden layer in cache or registers, and again in backward. Saved
for backward: the layer's input and its three-channel update before the last BatchNorm.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from gnnhpc.kernels import kernel_status, vig_torch
from gnnhpc.kernels import vig as vig_kernel
from gnnhpc.models import vig_fold as fold
from gnnhpc.models.batchnorm import BatchNorm
from gnnhpc.models.context import Context
from gnnhpc.models.vig import CHANNELS, FfnParameters, Grid, GrapherParameters


class FusedGrapher(GrapherParameters):
    """The Grapher, `[B, H*W, 3]` in and out."""

    def forward(self, x: Tensor, context: Context) -> Tensor:
        conv = self.conv
        weights = (conv.lin_root.weight, conv.lin_rel.weight, conv.lin_rel.bias)
        return _apply(self, x, self.grid, weights)


class FusedFfn(FfnParameters):
    """The FFN, `[B, H*W, 3]` in and out."""

    def forward(self, x: Tensor, context: Context) -> Tensor:
        return _apply(self, x, (1, x.shape[1]), (None, None, None))


def note(dtype: torch.dtype, device: torch.device) -> str:
    """Which code runs for tensors like these."""
    if _kernels(dtype, device) is vig_kernel:
        return f"fused/c++ {vig_kernel.instructions()}"
    return "fused/torch"


def reason(dtype: torch.dtype, device: torch.device) -> str:
    """Why that code, in a line."""
    if device.type != "cpu" or dtype != torch.float32:
        return f"{dtype} on {device.type} is computed in torch"
    return kernel_status("vig")


def _kernels(dtype: torch.dtype, device: torch.device) -> ModuleType:
    fits = dtype == torch.float32 and device.type == "cpu"
    return vig_kernel if fits and vig_kernel.available() else vig_torch


def _apply(
    layer: GrapherParameters | FfnParameters,
    x: Tensor,
    grid: Grid,
    conv: tuple[Tensor | None, Tensor | None, Tensor | None],
) -> Tensor:
    fc1, norm1, fc2, norm2 = layer.fc1, layer.norm1, layer.fc2, layer.norm2
    if x.shape[1:] != (grid[0] * grid[1], CHANNELS):
        raise ValueError(
            f"expected [images, {grid[0] * grid[1]}, {CHANNELS}], found {list(x.shape)}"
        )
    norms = (norm1.weight, norm1.bias, norm2.weight, norm2.bias)
    out: Tensor = _Layer.apply(
        x.contiguous(),
        grid,
        norm1,
        norm2,
        fc1.weight,
        fc1.bias,
        *conv,
        fc2.weight,
        fc2.bias,
        *norms,
    )
    return out


def _norm(module: BatchNorm, mean: Tensor, variance: Tensor) -> fold.Norm:
    return fold.Norm(module.weight.detach(), module.bias.detach(), mean, variance, module.eps)


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        grid: Grid,
        norm1: BatchNorm,
        norm2: BatchNorm,
        w1: Tensor,
        b1: Tensor,
        root: Tensor | None,
        relative: Tensor | None,
        conv_bias: Tensor | None,
        w2: Tensor,
        b2: Tensor,
        *norm_parameters: Tensor,
    ) -> Tensor:
        kernels = _kernels(x.dtype, x.device)
        training = norm1.training
        rows = x.view(-1, CHANNELS)

        of = None
        if training:
            of = fold.Moments(*kernels.moments(rows))
            first_norm = _norm(norm1, *fold.hidden_moments(w1, b1, of))
            norm1.observe(first_norm.mean, first_norm.variance, len(rows))
        else:
            first_norm = _norm(norm1, norm1.running_mean.clone(), norm1.running_var.clone())
        folded = fold.fold_linear(w1, b1, first_norm).to(x.dtype)
        first, sums = folded, None
        if root is not None:
            first = fold.fold_conv(folded, root, relative, conv_bias)
            sums = kernels.neighbour_sum(rows, grid)

        y = kernels.forward(rows, sums, grid, first, w2, b2)
        if training:
            mean, covariance = kernels.moments(y)
            second_norm = _norm(norm2, mean, covariance.diagonal().clone())
            norm2.observe(second_norm.mean, second_norm.variance, len(rows))
        else:
            second_norm = _norm(norm2, norm2.running_mean.clone(), norm2.running_var.clone())
        out: Tensor = kernels.residual(rows, y, *fold.fold_norm(second_norm)).view_as(x)

        ctx.grid, ctx.kernels, ctx.training = grid, kernels, training
        ctx.eps = first_norm.eps, second_norm.eps
        ctx.save_for_backward(
            x,
            y,
            folded,
            first,
            w1,
            b1,
            root,
            relative,
            w2,
            *norm_parameters,
            *(of or (None, None)),
            first_norm.mean,
            first_norm.variance,
            second_norm.mean,
            second_norm.variance,
        )
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (
            x,
            y,
            folded,
            first,
            w1,
            b1,
            root,
            relative,
            w2,
            weight1,
            bias1,
            weight2,
            bias2,
            mean,
            covariance,
            mean1,
            variance1,
            mean2,
            variance2,
        ) = ctx.saved_tensors
        kernels: ModuleType = ctx.kernels
        grid, training = ctx.grid, ctx.training
        of = fold.Moments(mean, covariance) if training else None
        first_norm = fold.Norm(weight1, bias1, mean1, variance1, ctx.eps[0])
        second_norm = fold.Norm(weight2, bias2, mean2, variance2, ctx.eps[1])
        rows, g = x.view(-1, CHANNELS), grad.contiguous().view(-1, CHANNELS)

        d_norm2 = fold.unfold_norm(
            second_norm, *kernels.products(g, y), len(rows), by_batch=training
        )
        sums = None if root is None else kernels.neighbour_sum(rows, grid)
        d_x, d_sums, d_first, d_w2, d_b2 = kernels.backward(
            rows, sums, grid, first, w2, y, g, d_norm2.along
        )
        d_folded, d_conv = d_first, (None, None, None)
        if root is not None:
            d_folded, *d_conv = fold.unfold_conv(d_first, folded, root, relative)
        d_linear = fold.unfold_linear(d_folded, w1, b1, first_norm, of)
        if d_linear.moments is None:
            matrix, vector = w1.new_zeros(CHANNELS, CHANNELS), w1.new_zeros(CHANNELS)
        else:
            matrix, vector = fold.moments_slope(d_linear.moments, of, len(rows))
        if ctx.needs_input_grad[0]:
            d_x = kernels.finish(d_x, d_sums, g, rows, matrix, vector, grid).view_as(x)
        else:
            d_x = None

        small = (d_linear.norm_weight, d_linear.norm_bias, d_norm2.weight, d_norm2.bias)
        linear = (d_linear.weight.to(x.dtype), d_linear.bias.to(x.dtype))
        return (
            d_x,
            None,
            None,
            None,
            *linear,
            *d_conv,
            d_w2,
            d_b2,
            *(d.to(x.dtype) for d in small),
        )
