"""ViG's readout in one call forward and one backward: same function and gradients.

For a micro-batch of few images the arithmetic takes microseconds, and torch's dozen operations on
tensors of a thousand numbers take many times that.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gnnhpc.kernels import calls, vig_readout
from gnnhpc.kernels import vig as vig_kernel
from gnnhpc.kernels.vig_readout import Weights
from gnnhpc.models.context import Context
from gnnhpc.models.vig.fused import kernels_for
from gnnhpc.models.vig.reference import CHANNELS, Readout


class FusedReadout(Readout):
    """The readout, `[B, H*W, 3]` to logits `[B, classes]`; in torch where there is no kernel.

    Raises ValueError for another input.
    """

    def forward(self, x: Tensor, context: Context) -> Tensor:
        if x.dim() != 3 or x.shape[2] != CHANNELS:
            raise ValueError(f"expected [images, nodes, {CHANNELS}], found {list(x.shape)}")
        weights = Weights(self.fc1.weight, self.fc1.bias, self.fc2.weight, self.fc2.bias)
        if not _fits_kernel(weights, x):
            calls.count(calls.TORCH, vig_readout.FORWARD)
            return super().forward(x, context)
        return cast(Tensor, cast(Any, _Readout).apply(x.contiguous(), *weights))


def _fits_kernel(weights: Weights, x: Tensor) -> bool:
    """Whether the kernel computes with such weights and images."""
    if kernels_for(x.dtype, x.device) is not vig_kernel:
        return False
    if not all(each is not None and each.dtype == x.dtype for each in weights):
        return False
    w1, b1, w2, b2 = (each.shape for each in weights)
    return w1 == (*b1, CHANNELS) and w2 == (*b2, *b1)


class _Readout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *weights: Tensor) -> Tensor:
        logits, pooled = vig_readout.forward(x, Weights(*weights))
        ctx.nodes = x.shape[1]
        ctx.save_for_backward(pooled, *weights)
        return logits

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        pooled, *weights = ctx.saved_tensors
        wants_x = ctx.needs_input_grad[0]
        d_x, d_weights = vig_readout.backward(
            pooled, ctx.nodes, Weights(*weights), grad.contiguous(), wants_x=wants_x
        )
        return (d_x, *d_weights)
