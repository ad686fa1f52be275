"""ViG's readout in one call forward and one backward: same function and gradients.

Of a micro-batch of few images the arithmetic takes microseconds, torch's dozen operations on
tensors of a thousand numbers many times that.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gnnhpc.kernels import calls, vig_readout
from gnnhpc.kernels import vig as vig_kernel
from gnnhpc.kernels.vig_readout import Weights
from gnnhpc.models.added_gradients import (
    AddsGradients,
    can_add,
    gradients_of,
    input_to_train,
    tell_added,
)
from gnnhpc.models.context import Context
from gnnhpc.models.one_call import InOneCall
from gnnhpc.models.vig import fused
from gnnhpc.models.vig.layer_parameters import CHANNELS
from gnnhpc.models.vig.one_call import prepare_call
from gnnhpc.models.vig.reference import Readout


class FusedReadout(InOneCall, AddsGradients, Readout):
    """The readout, `[B, H*W, 3]` to logits `[B, classes]`; in torch where there is no kernel.

    Raises ValueError for another input.
    """

    prepare_call = staticmethod(prepare_call)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        if x.dim() != 3 or x.shape[2] != CHANNELS:
            raise ValueError(f"expected [images, nodes, {CHANNELS}], found {list(x.shape)}")
        weights = self._weights()
        if not _fits_kernel(weights, x.dtype, x.device):
            calls.count(calls.TORCH, vig_readout.FORWARD)
            return super().forward(x, context)
        apply, x = cast(Any, _Readout).apply, x.contiguous()
        if self.adds_gradients and can_add(weights):
            return cast(Tensor, apply(x, weights, input_to_train(x)))
        return cast(Tensor, apply(x, weights, None, *weights))

    def for_one_call(self) -> Weights | None:
        """None where its forward is another one, or leaves something to autograd."""
        if "forward" in vars(self) or type(self).forward is not _AS_WRITTEN:
            return None
        weights = self._weights()
        fits = _fits_kernel(weights, weights.w1.dtype, weights.w1.device)
        return weights if fits and self.adds_gradients and can_add(weights) else None

    def _weights(self) -> Weights:
        """From the modules' own dictionaries, as the other layers find theirs."""
        fc1, fc2 = (cast(Any, self._modules[name])._parameters for name in ("fc1", "fc2"))
        return Weights(fc1["weight"], fc1["bias"], fc2["weight"], fc2["bias"])


_AS_WRITTEN = FusedReadout.forward


def _fits_kernel(weights: Weights, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether the kernel computes with such weights and images."""
    if fused.kernels_for(dtype, device) is not vig_kernel:
        return False
    if not all(each is not None and each.dtype == dtype for each in weights):
        return False
    w1, b1, w2, b2 = (each.shape for each in weights)
    return w1 == (*b1, CHANNELS) and w2 == (*b2, *b1)


class _Readout(torch.autograd.Function):
    """Gradients are returned for `parameters`; without these they are added where they belong."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weights: Weights, trained: Tensor | None, *parameters: Tensor
    ) -> Tensor:
        logits, pooled = vig_readout.forward(x, weights)
        ctx.weights, ctx.nodes, ctx.adds = weights, x.shape[1], not parameters
        ctx.save_for_backward(pooled, *weights)
        return logits

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        pooled, *weights = ctx.saved_tensors
        d_x, d_weights = vig_readout.backward(
            *(pooled, ctx.nodes, Weights(*weights), grad.contiguous()),
            wants_x=ctx.needs_input_grad[0],
            into=gradients_of(ctx.weights) if ctx.adds else None,
        )
        if ctx.adds:
            tell_added(ctx.weights)
            return d_x, None, None
        return (d_x, None, None, *d_weights)
