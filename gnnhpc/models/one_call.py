"""Neighbouring layers that are computed by one call: the same values to the bit, in less time.

A call prepared for a step is good for its micro-batches alone, in which nobody exchanges
parameters or their gradients' buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn
from torch.nn.modules import module as torch_module

TellBackward = Callable[[float, Sequence[float]], None]
"""Told when the last layer's backward began, and when each layer's had ended, in their order."""


class Outputs(NamedTuple):
    """Of several layers one after the other."""

    between: Tensor
    """Of all but the last layer, [layers-1, ...], without gradients."""
    last: Tensor
    ended_s: Sequence[float]
    """When each layer had ended, by `time.perf_counter`."""


class OneCall(Protocol):
    """Computes its layers' forward and, by autograd, their backward."""

    def takes(self, x: Tensor) -> bool:
        """Whether it can compute such an input; else the layers have to be called one by one."""
        ...

    def forward(self, x: Tensor, tell_backward: TellBackward) -> Outputs:
        """Raises ValueError for an input that it does not take."""
        ...


class InOneCall(nn.Module):
    """Mixed into a layer that its neighbours of the same `prepare_call` can be computed with."""

    @staticmethod
    def prepare_call(layers: Sequence[nn.Module]) -> OneCall | None:
        """For the micro-batches of one training step; None where they must be called one by one."""
        raise NotImplementedError


def neighbours(layers: Sequence[nn.Module]) -> list[range]:
    """Which layers can be computed together, two or more each."""
    kinds = [each.prepare_call if isinstance(each, InOneCall) else None for each in layers]
    found, first = [], 0
    for end in range(1, len(layers) + 1):
        if end == len(layers) or kinds[end] is not kinds[first]:
            if kinds[first] is not None and end - first > 1:
                found.append(range(first, end))
            first = end
    return found


def is_watched_within(layers: Sequence[nn.Module]) -> bool:
    """Whether hooks are to be called between these layers, or more than a call can.

    Of the layers alone: what a layer calls within is its own matter.

    Before the first layer and after the last one `call_hooks_before` and `call_hooks_after` call
    those of `register_forward_pre_hook` and `register_forward_hook`.
    """
    if torch_module._has_any_global_hook():
        return True
    return any(
        layer._backward_hooks
        or layer._backward_pre_hooks
        or layer._forward_hooks_with_kwargs
        or layer._forward_pre_hooks_with_kwargs
        or (layer._forward_pre_hooks and layer is not layers[0])
        or (layer._forward_hooks and layer is not layers[-1])
        for layer in layers
    )


def call_hooks_before(layer: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
    """What its forward is to be given, as torch's own call of a module has it."""
    for hook in list(layer._forward_pre_hooks.values()):
        changed = hook(layer, given)
        if changed is not None:
            given = changed if isinstance(changed, tuple) else (changed,)
    return given


def call_hooks_after(layer: nn.Module, given: tuple[Any, ...], output: Tensor) -> Tensor:
    """What its callers are to be given."""
    for hook in list(layer._forward_hooks.values()):
        changed = hook(layer, given, output)
        if changed is not None:
            output = changed
    return output
