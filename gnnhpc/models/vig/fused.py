"""ViG's Grapher and FFN without large intermediate tensors: same function and gradients.

A layer equals a small network a node (`gnnhpc.kernels.vig_fold` says why), which the kernels
evaluate some rows at a time, with the hidden layer in cache or registers, and again in backward.
Saved for backward: the layer's input and its three-channel update before the last BatchNorm.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gnnhpc.kernels import kernel_status, kernel_traits, vig_torch
from gnnhpc.kernels import vig as vig_kernel
from gnnhpc.kernels.vig_layers import Layer
from gnnhpc.kernels.vig_torch import Moved, Result, Statistics, Weights
from gnnhpc.models.added_gradients import can_add, gradients_of, input_to_train, tell_added
from gnnhpc.models.batchnorm import BatchNorm
from gnnhpc.models.context import Context
from gnnhpc.models.one_call import InOneCall
from gnnhpc.models.vig.layer_parameters import CHANNELS, FfnParameters, GrapherParameters, Grid
from gnnhpc.models.vig.one_call import prepare_call

_Conv = tuple[Tensor | None, Tensor | None, Tensor | None]
_NO_CONV: _Conv = (None, None, None)


class FusedGrapher(InOneCall, GrapherParameters):
    """The Grapher, `[B, H*W, 3]` in and out."""

    prepare_call = staticmethod(prepare_call)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        return _apply(self, x, self.grid, self._conv())

    def for_one_call(self) -> Layer | None:
        return _for_one_call(self, self.grid, self._conv())

    def _conv(self) -> _Conv:
        linear = self._modules["conv"]._modules  # type: ignore[union-attr]
        own, around = (linear[name]._parameters for name in ("lin_root", "lin_rel"))  # type: ignore[union-attr]
        return own["weight"], around["weight"], around["bias"]


class FusedFfn(InOneCall, FfnParameters):
    """The FFN, `[B, H*W, 3]` in and out."""

    prepare_call = staticmethod(prepare_call)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        return _apply(self, x, (1, x.shape[1]), _NO_CONV)

    def for_one_call(self) -> Layer | None:
        return _for_one_call(self, None, _NO_CONV)


_AS_WRITTEN = {each: each.forward for each in (FusedGrapher, FusedFfn)}


def note(dtype: torch.dtype, device: torch.device) -> str:
    """Which code runs for such tensors: `fused/c++ <vectors> <traits>` or `fused/torch`."""
    if kernels_for(dtype, device) is vig_kernel:
        return f"fused/c++ {vig_kernel.instructions()}{kernel_traits('vig')}"
    return "fused/torch"


def reason(dtype: torch.dtype, device: torch.device) -> str:
    """Why this code runs, in one line."""
    if _fits_kernel(dtype, device):
        return kernel_status("vig")
    return f"{str(dtype).removeprefix('torch.')} on {device.type} is computed in torch"


def kernels_for(dtype: torch.dtype, device: torch.device) -> ModuleType:
    """The module that computes on such tensors; the first call may compile a kernel."""
    return vig_kernel if _fits_kernel(dtype, device) and vig_kernel.available() else vig_torch


def _fits_kernel(dtype: torch.dtype, device: torch.device) -> bool:
    return dtype == torch.float32 and device.type == "cpu"


def _apply(
    layer: GrapherParameters | FfnParameters,
    x: Tensor,
    grid: Grid,
    conv: _Conv,
) -> Tensor:
    nodes = grid[0] * grid[1]
    if x.dim() != 3 or x.shape[1:] != (nodes, CHANNELS):
        raise ValueError(f"expected [images, {nodes}, {CHANNELS}], found {list(x.shape)}")
    weights, norm1, norm2 = _weights_of(layer, conv)
    kernels = kernels_for(x.dtype, x.device)
    call = _Call.of(grid, norm1, norm2, weights, kernels)
    apply, x = cast(Any, _Layer).apply, x.contiguous()
    if layer.adds_gradients and kernels is vig_kernel and can_add(weights):
        return cast(Tensor, apply(x, call, input_to_train(x)))
    return cast(Tensor, apply(x, call, None, *weights))


def _for_one_call(layer: FusedGrapher | FusedFfn, grid: Grid | None, conv: _Conv) -> Layer | None:
    """None where its forward is another one, in Python, or leaves something to autograd or to
    BatchNorm."""
    if "forward" in vars(layer) or type(layer).forward is not _AS_WRITTEN.get(type(layer)):
        return None
    weights, norm1, norm2 = _weights_of(layer, conv)
    kernels = kernels_for(weights.w1.dtype, weights.w1.device)
    trains = layer.training and norm1.training and norm2.training
    if not (trains and layer.adds_gradients and kernels is vig_kernel and can_add(weights)):
        return None
    call = _Call.of(grid or (1, 1), norm1, norm2, weights, kernels)
    moved = call.moved(rows=2)
    return None if moved is None else Layer(grid, weights, call.eps, moved)


def _weights_of(
    layer: GrapherParameters | FfnParameters,
    conv: _Conv,
) -> tuple[Weights, BatchNorm, BatchNorm]:
    """From the modules' own dictionaries: a module's attributes take ten times as long to find,
    which counts where a micro-batch has few images."""
    modules: Any = layer._modules
    norm1, norm2 = modules["norm1"], modules["norm2"]
    fc1, fc2 = modules["fc1"]._parameters, modules["fc2"]._parameters
    scale1, scale2 = norm1._parameters, norm2._parameters
    weights = Weights(
        *(fc1["weight"], fc1["bias"], scale1["weight"], scale1["bias"]),
        *conv,
        *(fc2["weight"], fc2["bias"], scale2["weight"], scale2["bias"]),
    )
    return weights, norm1, norm2


class _Call(NamedTuple):
    """A layer's forward pass but for its input."""

    grid: Grid
    norm1: BatchNorm
    norm2: BatchNorm
    weights: Weights
    kernels: ModuleType
    eps: tuple[float, float]
    """Of the BatchNorms, at the forward."""

    @classmethod
    def of(
        cls,
        grid: Grid,
        norm1: BatchNorm,
        norm2: BatchNorm,
        weights: Weights,
        kernels: ModuleType,
    ) -> _Call:
        return cls(grid, norm1, norm2, weights, kernels, (norm1.eps, norm2.eps))

    def statistics(self) -> Statistics:
        """Both BatchNorms' running ones."""
        first: Any = self.norm1._buffers
        second: Any = self.norm2._buffers
        return Statistics(
            *(first["running_mean"], first["running_var"]),
            *(second["running_mean"], second["running_var"]),
        )

    def moved(self, rows: int) -> Moved | None:
        """What the kernel moves; None where BatchNorms are told what was observed."""
        norm1, norm2 = self.norm1, self.norm2
        if self.kernels is not vig_kernel or not (norm1.moves(rows) and norm2.moves(rows)):
            return None
        first: Any = norm1._buffers["num_batches_tracked"]
        second: Any = norm2._buffers["num_batches_tracked"]
        batches = first, second
        return Moved(self.statistics(), batches, (norm1.step, norm2.step))


class _Layer(torch.autograd.Function):
    """A whole Grapher, or without convolution weights a whole FFN.

    Gradients are returned for `parameters`; without these they are added where they belong.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, call: _Call, trained: Tensor | None, *parameters: Tensor | None
    ) -> Tensor:
        rows = x.view(-1, CHANNELS)
        by_batch = call.norm1.training
        running, moved = None, None
        if by_batch:
            moved = call.moved(rows.shape[0])
        else:
            running = call.statistics()
        given = (rows, call.grid, call.weights, running, call.eps)
        result: Result = call.kernels.forward(*given, *(() if moved is None else (moved,)))
        if by_batch and result.statistics is not None:
            mean1, variance1, mean2, variance2 = result.statistics
            call.norm1.observe(mean1, variance1, len(rows))
            call.norm2.observe(mean2, variance2, len(rows))
        ctx.call, ctx.by_batch, ctx.adds = call, by_batch, not parameters
        ctx.save_for_backward(x, *call.weights, *result.saved)
        return result.out.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, *rest = ctx.saved_tensors
        call: _Call = ctx.call
        count = len(Weights._fields)
        weights = Weights(*rest[:count])
        d_rows, d_weights = call.kernels.backward(
            x.view(-1, CHANNELS),
            call.grid,
            weights,
            tuple(rest[count:]),
            grad.contiguous().view(-1, CHANNELS),
            call.eps,
            by_batch=ctx.by_batch,
            wants_x=ctx.needs_input_grad[0],
            **({"into": gradients_of(call.weights)} if ctx.adds else {}),
        )
        d_x = None if d_rows is None else d_rows.view_as(x)
        if ctx.adds:
            tell_added(call.weights)
            return d_x, None, None
        return (d_x, None, None, *d_weights)
