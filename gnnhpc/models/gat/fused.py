"""Graph attention over edges sorted by target: PyG's GATConv without its copies for each edge.

Velickovic et al. 2018, as PyG 2.8 computes it: h = W x; an edge's score is
leaky_relu(att_src . h_source + att_dst . h_target); its coefficient the softmax over the edges
of its target, then dropout; the output the coefficients' sum of h, heads concatenated or
averaged, plus a bias. Parameters, names and initial values are PyG's.

A compiled kernel does the work on a CPU, one in Triton on a GPU; where there is neither, plain
torch does.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from gnnhpc.graphs.blocks import Block
from gnnhpc.kernels import gat as kernel
from gnnhpc.kernels.gpu import here as gpu
from gnnhpc.kernels.mask import Mask
from gnnhpc.models.attention import AttentionSettings
from gnnhpc.models.context import Context
from gnnhpc.models.later_weights import LeavesWeights
from gnnhpc.models.sparse_linear import Features, project

SLOPE = 0.2
"""Of the leaky ReLU, PyG's default and the paper's."""


class AttentionLayer(LeavesWeights):
    """[rows_in, inputs] -> [rows_out, heads * channels], or [rows_out, channels] averaged."""

    def __init__(self, settings: AttentionSettings) -> None:
        super().__init__()
        self.settings = settings
        heads, channels = settings.heads, settings.channels
        self.lin = _Weight(heads * channels, settings.inputs)
        self.att_src = nn.Parameter(torch.empty(1, heads, channels))
        self.att_dst = nn.Parameter(torch.empty(1, heads, channels))
        self.bias = settings.bias()
        # PyG draws its weight twice; so does this, for equal initial values from one seed.
        for parameter in (self.lin.weight, self.lin.weight, self.att_src, self.att_dst):
            glorot(parameter)

    def forward(self, x: Features, context: Context) -> Tensor:
        heads, channels = self.settings.heads, self.settings.channels
        block, mask = self.settings.block(context), self.settings.mask(self.training, context)
        weight = self.lin.weight.view(heads, channels, -1)
        if kernel.fits(self.bias):
            # The kernel wants heads innermost; permuting the weight permutes its product.
            lanes = weight.transpose(0, 1).flatten(0, 1)
            h = project(x, lanes).view(-1, channels, heads)
            attention = torch.cat((self.att_src, self.att_dst)).transpose(1, 2).contiguous()
            args = (h, attention, self.bias, block, self.settings.average, mask)
            result: Tensor = _Attend.apply(*args)  # type: ignore[no-untyped-call]
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


class _Weight(nn.Module):
    """The projection, under its name in PyG's state dict."""

    def __init__(self, outputs: int, inputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))


def glorot(parameter: Tensor) -> None:
    bound = math.sqrt(6.0 / (parameter.shape[-2] + parameter.shape[-1]))
    nn.init.uniform_(parameter, -bound, bound)


class _Attend(torch.autograd.Function):
    """The kernel's attention: features [rows_in, C, H], both attention vectors [2, C, H]."""

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
        done = kernel.attend_forward(
            h, attention, bias, block, slope=SLOPE, average=average, mask=mask
        )
        saved = (done.score_source, done.score_target, done.coefficient)
        ctx.save_for_backward(h, attention, *saved)
        ctx.block, ctx.average, ctx.finite = block, average, done.finite
        ctx.scale = mask.scale if mask else 1.0
        return done.out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        h, attention, *saved = ctx.saved_tensors
        grad_h, grad_attention = kernel.attend_backward(
            upstream,
            h,
            attention,
            tuple(saved),
            ctx.block,
            slope=SLOPE,
            average=ctx.average,
            scale=ctx.scale,
            finite=ctx.finite,
        )
        return grad_h, grad_attention, upstream.sum(0), None, None, None
