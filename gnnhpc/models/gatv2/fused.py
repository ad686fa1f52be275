"""GATv2's attention over edges sorted by target: PyG's GATv2Conv without its copies for each edge.

Brody et al. 2022, equation 7: an edge's score is att . leaky_relu(W_l x_source + W_r x_target), so
that a target's ranking of its neighbours is its own. Parameters and names are PyG's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from gnnhpc.graphs.blocks import Block
from gnnhpc.kernels import gatv2 as kernel
from gnnhpc.kernels.gpu import here as gpu
from gnnhpc.kernels.mask import Mask
from gnnhpc.models.attention import AttentionSettings
from gnnhpc.models.context import Context
from gnnhpc.models.gat.fused import SLOPE, glorot
from gnnhpc.models.later_weights import LeavesWeights
from gnnhpc.models.sparse_linear import Features, project


class AttentionLayer(LeavesWeights):
    """[rows_in, inputs] -> [rows_out, heads * channels], or [rows_out, channels] averaged."""

    def __init__(self, settings: AttentionSettings) -> None:
        super().__init__()
        self.settings = settings
        inputs, self.heads, self.channels = settings.inputs, settings.heads, settings.channels
        self.lin_l = nn.Linear(inputs, self.heads * self.channels)
        self.lin_r = nn.Linear(inputs, self.heads * self.channels)
        self.att = nn.Parameter(torch.empty(1, self.heads, self.channels))
        self.bias = settings.bias()
        for linear in (self.lin_l, self.lin_r):
            glorot(linear.weight)
            nn.init.zeros_(linear.bias)
        glorot(self.att)

    def forward(self, x: Features, context: Context) -> Tensor:
        block, mask = self.settings.block(context), self.settings.mask(self.training, context)
        if not kernel.fits(self.bias):
            return self._heads_outside(x, block, mask)
        # The kernel wants heads innermost; permuting the weights permutes their products.
        source, target = (
            (project(x, self._lanes(lin.weight)) + self._lanes(lin.bias)).view(
                -1, self.channels, self.heads
            )
            for lin in (self.lin_l, self.lin_r)
        )
        attention = self.att[0].t().contiguous()
        args = (source, target[: block.rows_out], attention, self.bias, block)
        average = self.settings.average
        result: Tensor = _Attend.apply(*args, average, mask)  # type: ignore[no-untyped-call]
        return result

    def _lanes(self, parameter: Tensor) -> Tensor:
        """Its first dimension, heads by channels, as channels by heads."""
        return (
            parameter.view(self.heads, self.channels, -1).transpose(0, 1).reshape(parameter.shape)
        )

    def _heads_outside(self, x: Features, block: Block, mask: Mask | None) -> Tensor:
        """In Triton, or in plain torch: any device."""
        source, target = (
            (project(x, lin.weight) + lin.bias).view(-1, self.heads, self.channels)
            for lin in (self.lin_l, self.lin_r)
        )
        if gpu.fits(source):
            from gnnhpc.kernels.gpu.attention_v2 import attend
        else:
            from gnnhpc.kernels.gatv2_torch import attend
        out = attend(source, target[: block.rows_out], self.att, block, mask, SLOPE)
        return self.settings.joined(out) + self.bias

    def extra_repr(self) -> str:
        return str(self.settings)


class _Attend(torch.autograd.Function):
    """Features of sources [rows_in, C, H] and targets [rows_out, C, H], the vector [C, H]."""

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
        out, coefficient, finite = kernel.attend_forward(
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
        gradients = kernel.attend_backward(
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
