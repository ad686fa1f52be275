"""Graphers and FFNs one after the other in one call of the C++ kernel."""

from __future__ import annotations

import time
from collections.abc import Sequence
from operator import attrgetter, is_not
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from gnnhpc.kernels import vig_layers
from gnnhpc.models.added_gradients import gradients_of, input_to_train, is_told, tell_added
from gnnhpc.models.one_call import Outputs, TellBackward
from gnnhpc.models.recomputation import is_recomputing
from gnnhpc.models.vig.layer_parameters import CHANNELS

_GRAD, _VERSION = attrgetter("grad"), attrgetter("_version")


class VigCall:
    """Layers that move their running statistics and add to their gradients themselves."""

    def __init__(self, layers: Sequence[vig_layers.Layer]) -> None:
        self.layers = vig_layers.Layers(layers)
        self.weights = [each.weights for each in layers]
        self.parameters = [p for each in self.weights for p in each if p is not None]
        self.prepared_with = self.versions()
        # Last layers first, as autograd would. Of a step's hundred parameters few have a hook.
        self.told = [p for p in reversed(self.parameters) if is_told(p)]
        self._into: vig_layers.Gradients | None = None
        self._held: list[Tensor | None] = []

    def forward(self, x: Tensor, tell_backward: TellBackward) -> Outputs:
        if not self.takes(x):
            raise ValueError(f"{x.dtype} {list(x.shape)} are no images of these layers")
        found: list[Any] = []
        apply = cast(Any, _Layers).apply
        last = apply(x.contiguous(), self, tell_backward, found, input_to_train(x))
        (computed,) = found
        return Outputs(computed.between, last, computed.ended_s)

    def takes(self, x: Tensor) -> bool:
        """Images as the kernel wants them, of two rows at least: one has no variance."""
        if x.dtype != torch.float32 or x.device.type != "cpu":
            return False
        if x.dim() != 3 or x.shape[2] != CHANNELS:
            return False
        images, nodes, _ = x.shape
        return images * nodes > 1 and self.layers.nodes in (None, nodes)

    def into(self) -> vig_layers.Gradients:
        """Where gradients are added; again where somebody has put others in their place."""
        if self._into is None or any(map(is_not, map(_GRAD, self.parameters), self._held)):
            self._into = vig_layers.Gradients([gradients_of(each) for each in self.weights])
            self._held = [p.grad for p in self.parameters]
        return self._into

    def versions(self) -> int:
        """Grows where a weight is changed in place."""
        return sum(map(_VERSION, self.parameters))


class _Layers(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        call: VigCall,
        tell_backward: TellBackward,
        found: list[vig_layers.Forward],
        trained: Tensor | None,
    ) -> Tensor:
        computed = call.layers.forward(x, moves=not is_recomputing())
        found.append(computed)
        ctx.call, ctx.tell_backward = call, tell_backward
        ctx.save_for_backward(x, computed.between, computed.updates, computed.states)
        return computed.out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        began_s = time.perf_counter()
        x, *saved = ctx.saved_tensors
        call: VigCall = ctx.call
        if call.versions() != call.prepared_with:
            raise RuntimeError("a weight was changed between a forward and its backward")
        wants_x, into = ctx.needs_input_grad[0], call.into()
        d_x, ended = call.layers.backward(x, saved, grad.contiguous(), into, wants_x=wants_x)
        ctx.tell_backward(began_s, ended)
        tell_added(call.told)
        return d_x, None, None, None, None


class ForOneCall(Protocol):
    """A layer of ViG's that may be computed with its neighbours."""

    def for_one_call(self) -> vig_layers.Layer | None:
        """None where it has to be called by itself."""
        ...


def prepare_call(layers: Sequence[nn.Module]) -> VigCall | None:
    """None where one of the layers has to be called by itself, or times cannot be told."""
    if not vig_layers.tells_time():
        return None
    found = [cast(ForOneCall, layer).for_one_call() for layer in layers]
    prepared = [each for each in found if each is not None]
    return VigCall(prepared) if len(prepared) == len(layers) else None
