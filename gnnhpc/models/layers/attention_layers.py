"""GAT's and GATv2's attention over edges sorted by target, without PyG's copies for each edge.

An edge's coefficient is the softmax of its score over the edges of its target, then dropout; the
output is the coefficients' sum of the sources' features, heads concatenated or averaged, plus a
bias. The score is

- in GAT leaky_relu(att_src . W x_source + att_dst . W x_target) (Velickovic et al. 2018, eq. 3),
- in GATv2 att . leaky_relu(W_l x_source + W_r x_target) (Brody et al. 2022, equation 7).

Parameters, names and initial values are those of PyG 2.8's GATConv and GATv2Conv. A C++ kernel
computes on a CPU, a Triton kernel on a GPU, and plain torch where there is neither.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from gnnhpc.graphs.blocks import Block
from gnnhpc.kernels import gat as gat_kernel
from gnnhpc.kernels import gatv2 as gatv2_kernel
from gnnhpc.kernels.gpu import here as gpu
from gnnhpc.kernels.mask import Mask
from gnnhpc.models.context import Context
from gnnhpc.models.layers.dropout import active_mask
from gnnhpc.models.layers.linear import Features, glorot, project

SLOPE = 0.2
"""Slope of the leaky ReLU below 0, PyG's default and the papers'."""


@dataclass(frozen=True)
class AttentionSettings:
    """Settings of a layer [rows_in, inputs] -> [rows_out, heads * channels].

    With `average`, heads are averaged: [rows_out, channels].
    """

    name: str
    number: int
    """The layer's number among the attention layers, from 0; it uses the block of that number."""
    inputs: int
    channels: int
    heads: int
    average: bool
    dropout: float
    """Dropout probability of attention coefficients."""

    def block(self, context: Context) -> Block:
        """The edges that the layer works on."""
        return context.chunk.blocks[self.number]

    def mask(self, training: bool, context: Context) -> Mask | None:
        """The dropout mask of the coefficients; None in evaluation or without dropout."""
        return active_mask(self.name, self.dropout, training, context)

    def bias(self) -> nn.Parameter:
        """A bias of zeros; it is added after heads are averaged."""
        return nn.Parameter(torch.zeros(self.channels * (1 if self.average else self.heads)))

    def joined(self, out: Tensor) -> Tensor:
        """[rows_out, heads, channels] with its heads side by side, or averaged."""
        return out.mean(1) if self.average else out.flatten(1)

    def __str__(self) -> str:
        return f"{self.name}, heads={self.heads}, channels={self.channels}, p={self.dropout}"


class GatLayer(nn.Module):
    """GAT's layer: [rows_in, inputs] -> [rows_out, heads * channels], or [rows_out, channels]."""

    def __init__(self, settings: AttentionSettings) -> None:
        super().__init__()
        self.settings = settings
        heads, channels = settings.heads, settings.channels
        self.lin = nn.Linear(settings.inputs, heads * channels, bias=False)
        self.att_src = nn.Parameter(torch.empty(1, heads, channels))
        self.att_dst = nn.Parameter(torch.empty(1, heads, channels))
        self.bias = settings.bias()
        for parameter in (self.lin.weight, self.att_src, self.att_dst):
            glorot(parameter)

    def forward(self, x: Features, context: Context) -> Tensor:
        heads, channels = self.settings.heads, self.settings.channels
        block, mask = self.settings.block(context), self.settings.mask(self.training, context)
        if gat_kernel.fits(self.bias):
            weight = _heads_innermost(self.lin.weight, heads)
            h = project(x, weight).view(-1, channels, heads)
            attention = torch.cat((self.att_src, self.att_dst)).transpose(1, 2).contiguous()
            args = (h, attention, self.bias, block, self.settings.average, mask)
            result: Tensor = _GatAttention.apply(*args)  # type: ignore[no-untyped-call]
            return result
        h = project(x, self.lin.weight).view(-1, heads, channels)
        if gpu.fits(h):
            from gnnhpc.kernels.gpu.attention import attend
        else:
            from gnnhpc.kernels.gat_torch import attend
        out = attend(h, self.att_src, self.att_dst, block, mask, SLOPE)
        return self.settings.joined(out) + self.bias

    def extra_repr(self) -> str:
        return str(self.settings)


class Gatv2Layer(nn.Module):
    """GATv2's layer, with the shapes of `GatLayer`."""

    def __init__(self, settings: AttentionSettings) -> None:
        super().__init__()
        self.settings = settings
        self.lin_l = nn.Linear(settings.inputs, settings.heads * settings.channels)
        self.lin_r = nn.Linear(settings.inputs, settings.heads * settings.channels)
        self.att = nn.Parameter(torch.empty(1, settings.heads, settings.channels))
        self.bias = settings.bias()
        for linear in (self.lin_l, self.lin_r):
            glorot(linear.weight)
            nn.init.zeros_(linear.bias)
        glorot(self.att)

    def forward(self, x: Features, context: Context) -> Tensor:
        heads, channels = self.settings.heads, self.settings.channels
        block, mask = self.settings.block(context), self.settings.mask(self.training, context)
        if gatv2_kernel.fits(self.bias):
            source, target = (
                project(x, _heads_innermost(each.weight, heads))
                + _heads_innermost(each.bias, heads)
                for each in (self.lin_l, self.lin_r)
            )
            source, target = (h.view(-1, channels, heads) for h in (source, target))
            attention = self.att[0].t().contiguous()
            args = (source, target[: block.rows_out], attention, self.bias, block)
            average = self.settings.average
            result: Tensor = _Gatv2Attention.apply(*args, average, mask)  # type: ignore[no-untyped-call]
            return result
        source, target = (
            (project(x, each.weight) + each.bias).view(-1, heads, channels)
            for each in (self.lin_l, self.lin_r)
        )
        if gpu.fits(source):
            from gnnhpc.kernels.gpu.attention_v2 import attend
        else:
            from gnnhpc.kernels.gatv2_torch import attend
        out = attend(source, target[: block.rows_out], self.att, block, mask, SLOPE)
        return self.settings.joined(out) + self.bias

    def extra_repr(self) -> str:
        return str(self.settings)


def _heads_innermost(parameter: Tensor, heads: int) -> Tensor:
    """A weight or bias with its first dimension, heads by channels, permuted to channels by heads.

    The C++ kernels need heads innermost; permuting the weight permutes its product.
    """
    return parameter.view(heads, -1, *parameter.shape[1:]).transpose(0, 1).flatten(0, 1)


class _GatAttention(torch.autograd.Function):
    """The C++ kernel's attention of features [rows_in, C, H] and both vectors [2, C, H]."""

    @staticmethod
    def forward(
        ctx: Any,
        h: Tensor,
        attention: Tensor,
        bias: Tensor,
        block: Block,
        average: bool,
        mask: Mask | None,
    ) -> Tensor:
        h = h.contiguous()
        done = gat_kernel.attend_forward(
            h, attention, bias, block, slope=SLOPE, average=average, mask=mask
        )
        scores = (done.score_source, done.score_target, done.coefficient)
        ctx.save_for_backward(h, attention, *scores)
        ctx.block, ctx.average, ctx.finite = block, average, done.finite
        ctx.scale = mask.scale if mask else 1.0
        return done.out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        h, attention, *scores = ctx.saved_tensors
        grad_h, grad_attention = gat_kernel.attend_backward(
            upstream,
            h,
            attention,
            tuple(scores),
            ctx.block,
            slope=SLOPE,
            average=ctx.average,
            scale=ctx.scale,
            finite=ctx.finite,
        )
        return grad_h, grad_attention, upstream.sum(0), None, None, None


class _Gatv2Attention(torch.autograd.Function):
    """The C++ kernel's attention of sources [rows_in, C, H], targets [rows_out, C, H], [C, H]."""

    @staticmethod
    def forward(
        ctx: Any,
        source: Tensor,
        target: Tensor,
        attention: Tensor,
        bias: Tensor,
        block: Block,
        average: bool,
        mask: Mask | None,
    ) -> Tensor:
        source, target = source.contiguous(), target.contiguous()
        out, coefficient, finite = gatv2_kernel.attend_forward(
            source, target, attention, bias, block, slope=SLOPE, average=average, mask=mask
        )
        ctx.save_for_backward(source, target, attention, coefficient)
        ctx.block, ctx.average, ctx.finite = block, average, finite
        ctx.scale = mask.scale if mask else 1.0
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        source, target, attention, coefficient = ctx.saved_tensors
        gradients = gatv2_kernel.attend_backward(
            upstream,
            source,
            target,
            attention,
            coefficient,
            ctx.block,
            slope=SLOPE,
            average=ctx.average,
            scale=ctx.scale,
            finite=ctx.finite,
        )
        return *gradients, upstream.sum(0), None, None, None
