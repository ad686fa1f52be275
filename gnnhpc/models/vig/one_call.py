"""Graphers, FFNs and the readout one after the other in one call of the C++ kernel."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from functools import partial
from operator import attrgetter, is_not
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from gnnhpc.kernels import vig_layers, vig_readout
from gnnhpc.models.added_gradients import (
    gradients_of,
    input_to_train,
    is_told,
    tell_added,
    trains_unchanged,
)
from gnnhpc.models.one_call import Outputs, TellBackward, on_backward
from gnnhpc.models.recomputation import is_recomputing
from gnnhpc.models.vig.layer_parameters import CHANNELS

_GRAD = attrgetter("grad")
_TRAINING = attrgetter("training")
_CHANGED = "a layer was changed within a step"


class VigCall:
    """Layers that move their running statistics and add to their gradients themselves, and the
    readout's weights where that comes after them."""

    def __init__(
        self, modules: Sequence[nn.Module], found: Sequence[_Found], microbatches: int
    ) -> None:
        """Of `modules`, which have been asked what they were `found` to have, for so many
        micro-batches."""
        self._microbatches = microbatches
        self.modules, self._was_found = modules, [_identity(each) for each in found]
        layers = [each for each in found if isinstance(each, vig_layers.Layer)]
        readout = next((each for each in found if isinstance(each, vig_readout.Weights)), None)
        self.layers = vig_layers.Layers(layers, readout)
        self.readout = readout
        self.weights = [each.weights for each in layers]
        all_weights = [*self.weights, *([] if readout is None else [readout])]
        self.parameters = [p for each in all_weights for p in each if p is not None]
        # Held, so that what a weight is put into within a step lies elsewhere.
        self._memory = [p.detach() for p in self.parameters]
        self._prepared_with = self._state()
        self._forwards = self._backwards = 0
        self._recomputed = False
        self._taken: torch.Size | None = None
        """A shape that it takes: the last one."""
        # Last layers first, as autograd would. Of a step's hundred parameters few have a hook.
        self.told = [p for p in reversed(self.parameters) if is_told(p)]
        self._into: vig_layers.Gradients | None = None
        self._held: list[Tensor | None] = []
        self._held_memory: list[Tensor] = []
        self._held_at: list[int] = []

    def forward(self, x: Tensor, tell_backward: TellBackward) -> Outputs:
        if is_recomputing():
            self._recomputed = True
        else:
            self._forwards += 1
            if self._forwards >= self._microbatches:
                # What is changed after the last forward is for the next step.
                self._check_layers()
        found: list[vig_layers.Forward] = []
        apply, x = cast(Any, _Layers).apply, x.contiguous()
        last = apply(x, self, tell_backward, found, input_to_train(x))
        _, saved, ended_s = found[0]
        if is_recomputing():
            for told in on_backward:
                told(self.modules, None, ended_s)
        return Outputs(partial(self.layers.between, x, saved), last, ended_s)

    def takes(self, x: Tensor) -> bool:
        """Images as the kernel wants them, of two rows at least: one has no variance; in training,
        as the layers were when this was prepared."""
        if x.dtype != torch.float32 or not x.is_cpu or not all(map(_TRAINING, self.modules)):
            return False
        shape = x.shape
        if shape != self._taken:
            if len(shape) != 3 or shape[2] != CHANNELS:
                return False
            images, nodes, _ = shape
            if images * nodes < 2 or self.layers.nodes not in (None, nodes):
                return False
            self._taken = shape
        return True

    def end(self) -> None:
        if self._forwards and self._state() != self._prepared_with:
            raise RuntimeError("a weight was changed within a step")
        if 0 < self._forwards < self._microbatches:
            self._check_layers()
        if self._into is not None and _addresses(self._held) != self._held_at:
            raise RuntimeError("a gradient was put elsewhere within a step")

    def begin_backward(self) -> None:
        """Raises RuntimeError where layers were changed before their last one."""
        self._backwards += 1
        if self._backwards < self._microbatches:
            return
        if self._recomputed:
            self._check_layers()
        known = {id(p) for p in self.told}
        if not all(
            trains_unchanged(p) and (id(p) in known or not is_told(p)) for p in self.parameters
        ):
            raise RuntimeError(_CHANGED)

    def into(self) -> vig_layers.Gradients:
        """Where gradients are added; again where somebody has put others in their place."""
        if self._into is None or any(map(is_not, map(_GRAD, self.parameters), self._held)):
            self._into = self._all_gradients()
            self._held = [p.grad for p in self.parameters]
            self._held_memory = [g.detach() for g in self._held if g is not None]
            self._held_at = _addresses(self._held)
        return self._into

    def _all_gradients(self) -> vig_layers.Gradients:
        readout = None if self.readout is None else gradients_of(self.readout)
        return vig_layers.Gradients([gradients_of(w) for w in self.weights], readout)

    def tell_added(self) -> None:
        """Call the hooks of gradients, which may put what those hold elsewhere."""
        before = _addresses(p.grad for p in self.told)
        tell_added(self.told)
        if _addresses(p.grad for p in self.told) != before:
            self._into = None

    def _check_layers(self) -> None:
        """Raises RuntimeError unless they would be prepared as they were.

        A gradient taken away is no change, as it is made again before it is added to.
        """
        self._all_gradients()
        # As where they were prepared: a backward has no gradients of gradients.
        with torch.enable_grad():
            found = [_identity(each) for each in _ask(self.modules)]
        if found != self._was_found:
            raise RuntimeError(_CHANGED)

    def _state(self) -> list[tuple[int, int]]:
        """Another one once a weight was changed in place, or lies elsewhere."""
        return [(p.data_ptr(), p._version) for p in self.parameters]


def _addresses(tensors: Iterable[Tensor | None]) -> list[int]:
    """0 for none."""
    return [0 if each is None else each.data_ptr() for each in tensors]


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
        ctx.save_for_backward(x, computed.saved)
        return computed.out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        began_s = time.perf_counter()
        if torch.is_grad_enabled():
            raise RuntimeError("gradients of these layers have no gradients")
        x, saved = ctx.saved_tensors
        call: VigCall = ctx.call
        call.begin_backward()
        wants_x, into = ctx.needs_input_grad[0], call.into()
        d_x, ended = call.layers.backward(x, saved, grad.contiguous(), into, wants_x=wants_x)
        ctx.tell_backward(began_s, ended)
        for told in on_backward:
            told(call.modules, began_s, ended)
        call.tell_added()
        return d_x, None, None, None, None


_Found = vig_layers.Layer | vig_readout.Weights | None


def _ask(modules: Sequence[nn.Module]) -> list[_Found]:
    return [cast(ForOneCall, each).for_one_call() for each in modules]


def _identity(found: _Found) -> tuple[object, ...]:
    """Which tensors these are, and what else there is."""
    if not isinstance(found, vig_layers.Layer):
        return tuple(map(id, found or ()))
    grid, weights, eps, (statistics, batches, momentum) = found
    tensors = *weights, *statistics, *batches
    return grid, eps, momentum, *map(id, tensors)


class ForOneCall(Protocol):
    """A layer of ViG's that may be computed with its neighbours."""

    def for_one_call(self) -> vig_layers.Layer | vig_readout.Weights | None:
        """None where it has to be called by itself; a readout is a model's last layer."""
        ...


def prepare_call(layers: Sequence[nn.Module], microbatches: int) -> VigCall | None:
    """For so many micro-batches of a step; None where one of the layers has to be called by itself,
    or times cannot be told."""
    if not vig_layers.tells_time():
        return None
    found = _ask(layers)
    prepared = found[:-1] if isinstance(found[-1], vig_readout.Weights) else found
    if not prepared or not all(isinstance(each, vig_layers.Layer) for each in prepared):
        return None
    return VigCall(layers, found, microbatches)
