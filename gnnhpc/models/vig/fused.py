"""ViG's layers without large intermediate tensors: same function and gradients.

A Grapher or FFN equals a small network for each node (`gnnhpc.kernels.vig.vig_fold` says why),
which the kernels evaluate some rows at a time, with the hidden layer in cache or registers, and
again in backward. Saved for backward are the layer's input and its three-channel update before the
last BatchNorm. The readout is `reference.Readout`, in plain torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from gnnhpc.kernels import dispatch
from gnnhpc.kernels.vig import torch_vig, vig_mlp
from gnnhpc.kernels.vig.torch_vig import Moved, Result, Statistics, Weights
from gnnhpc.kernels.vig.vig_mlp import Stack, StackLayer
from gnnhpc.models.layers.batchnorm import BatchNorm, is_recomputing
from gnnhpc.models.layers.stacked import Stackable, adds_in_place, has_hooks
from gnnhpc.models.model import Context
from gnnhpc.models.vig.reference import CHANNELS, Ffn, Grapher


class VigStack:
    """Graphers and FFNs one after the other, for micro-batches of two rows or more."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        self.layers = layers

    def __call__(self, x: Tensor) -> Tensor | None:
        if kernels_for(x.dtype, x.device) is not vig_mlp or has_hooks(self.layers):
            return None
        calls = [cast(_Fused, layer).call() for layer in self.layers]
        parameters = [p for call in calls for p in call.layer.weights if p is not None]
        fits = x.numel() > CHANNELS and all(call.suits(x) and call.moves for call in calls)
        if not fits or not adds_in_place(parameters):
            return None
        layers = Stack([call.layer for call in calls])
        # Without an input that needs a gradient autograd would not call the backward.
        trains = None if x.requires_grad else torch.empty(0, requires_grad=True)
        apply = cast(Any, _Stack).apply
        return cast(Tensor, apply(x.contiguous(), trains, layers, parameters))


class _Fused(Stackable):
    """Mixed into a layer of the reference."""

    stack = VigStack

    def forward(self, x: Tensor, context: Context) -> Tensor:
        if dispatch.is_plain():
            return cast(Tensor, super().forward(x, context))
        return _apply(x, self.call())

    def call(self) -> _Call:
        """Read from the modules' dictionaries, since attributes of a module take ten times as long
        to find, which counts where a micro-batch has few images."""
        modules: Any = self._modules
        norm1, norm2 = modules["norm1"], modules["norm2"]
        fc1, fc2 = modules["fc1"]._parameters, modules["fc2"]._parameters
        scale1, scale2 = norm1._parameters, norm2._parameters
        conv: Any = (None, None, None)
        if "conv" in modules:
            parts = modules["conv"]._modules
            root, around = parts["lin_root"]._parameters, parts["lin_rel"]._parameters
            conv = root["weight"], around["weight"], around["bias"]
        first = (fc1["weight"], fc1["bias"], scale1["weight"], scale1["bias"])
        last = (fc2["weight"], fc2["bias"], scale2["weight"], scale2["bias"])
        weights = Weights._make((*first, *conv, *last))
        names = ("running_mean", "running_var")
        buffers = (norm1._buffers, norm2._buffers)
        moved = Moved(
            Statistics(*(of[name] for of in buffers for name in names)),
            (buffers[0]["num_batches_tracked"], buffers[1]["num_batches_tracked"]),
            (norm1.step, norm2.step),
        )
        grid, eps = self.__dict__.get("grid"), (norm1.eps, norm2.eps)
        return _Call(norm1, norm2, StackLayer(grid, weights, eps, moved))


class FusedGrapher(_Fused, Grapher):
    """The Grapher, `[B, H*W, 3]` in and out."""


class FusedFfn(_Fused, Ffn):
    """The FFN, `[B, H*W, 3]` in and out."""


def note(dtype: torch.dtype, device: torch.device) -> str:
    """Which code runs for such tensors: `fused/c++ <vectors>`, `fused/triton` or `fused/torch`."""
    kernels = kernels_for(dtype, device)
    if kernels is vig_mlp:
        return f"fused/c++ {vig_mlp.instructions()}"
    return "fused/torch" if kernels is torch_vig else "fused/triton"


def kernels_for(dtype: torch.dtype, device: torch.device) -> ModuleType:
    """The module that computes on such tensors; the first call may compile a kernel."""
    if dtype == torch.float32:
        if device.type == "cpu" and vig_mlp.available():
            return vig_mlp
        if device.type == "cuda" and dispatch.triton_runs():
            from gnnhpc.kernels.vig import triton_vig

            return triton_vig
    return torch_vig


class _Call(NamedTuple):
    """A layer's forward pass except for its input: its parameters and buffers as they are now."""

    norm1: BatchNorm
    norm2: BatchNorm
    layer: StackLayer

    @property
    def moves(self) -> bool:
        """Whether a training micro-batch moves the running statistics at once."""
        return all(n.training and n.mode == "micro" for n in (self.norm1, self.norm2))

    @property
    def nodes(self) -> int | None:
        """Nodes of an image; None for an FFN, which takes any number."""
        grid = self.layer.grid
        return None if grid is None else grid[0] * grid[1]

    def suits(self, x: Tensor) -> bool:
        """Whether x is [images, nodes, 3]."""
        return x.dim() == 3 and x.shape[2] == CHANNELS and self.nodes in (None, x.shape[1])


def _apply(x: Tensor, call: _Call) -> Tensor:
    norm1, _, layer = call
    if not call.suits(x):
        expected = f"[images, {call.nodes or 'nodes'}, {CHANNELS}]"
        raise ValueError(f"expected {expected}, found {list(x.shape)}")
    kernels, x = kernels_for(x.dtype, x.device), x.contiguous()
    if norm1.training:
        return cast(Tensor, cast(Any, _Layer).apply(x, call, kernels, *layer.weights))
    assert layer.moved is not None
    with torch.no_grad():
        settings = (layer.grid or (1, x.shape[1]), layer.weights, layer.moved.statistics, layer.eps)
        return cast(Result, kernels.forward(x.view(-1, CHANNELS), *settings)).out.view_as(x)


class _Layer(torch.autograd.Function):
    """A whole Grapher, or without convolution weights a whole FFN, in training."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, call: _Call, kernels: ModuleType, *weights: Tensor | None
    ) -> Tensor:
        norm1, norm2, layer = call
        rows, count = x.view(-1, CHANNELS), x.shape[0] * x.shape[1]
        grid = layer.grid or (1, x.shape[1])
        result: Result = kernels.forward(rows, grid, layer.weights, None, layer.eps)
        assert result.statistics is not None
        mean1, variance1, mean2, variance2 = result.statistics
        norm1.observe(mean1, variance1, count)
        norm2.observe(mean2, variance2, count)
        ctx.kernels, ctx.grid, ctx.eps = kernels, grid, layer.eps
        ctx.save_for_backward(x, *weights, *result.saved)
        return result.out.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, *rest = ctx.saved_tensors
        count = len(Weights._fields)
        d_rows, d_weights = ctx.kernels.backward(
            x.view(-1, CHANNELS),
            ctx.grid,
            Weights(*rest[:count]),
            tuple(rest[count:]),
            grad.contiguous().view(-1, CHANNELS),
            ctx.eps,
            wants_x=ctx.needs_input_grad[0],
        )
        return (None if d_rows is None else d_rows.view_as(x), None, None, *d_weights)


class _Stack(torch.autograd.Function):
    """Layers of a stack; gradients of the parameters are added in place."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, trains: Tensor | None, layers: Stack, parameters: list[Tensor]
    ) -> Tensor:
        out, saved = layers.forward(x, moves=not is_recomputing())
        ctx.layers = layers
        # Autograd refuses a backward if one of the parameters was changed meanwhile.
        ctx.save_for_backward(x, saved, *parameters)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, None, None]:
        x, saved, *_ = ctx.saved_tensors
        gradients = [_gradients(layer.weights) for layer in ctx.layers.layers]
        into, wants_x = vig_mlp.addresses(gradients), ctx.needs_input_grad[0]
        d_x = ctx.layers.backward(x, saved, grad.contiguous(), into, wants_x=wants_x)
        return d_x, None, None, None


def _gradients(weights: Weights) -> Weights:
    """The tensors to add gradients to; zeros where one was taken away since the forward."""
    for parameter in weights:
        if parameter is not None and parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    return Weights._make(None if p is None else p.grad for p in weights)
