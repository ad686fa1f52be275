"""Neighbouring layers that are computed by one call: the same values to the bit, in less time.

A call prepared for a step is good for its micro-batches alone, in which nobody exchanges
parameters or their gradients' buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from torch import Tensor, nn
from torch.nn.modules import module as torch_module

Hook = TypeVar("Hook", bound=Callable[..., Any])
TellBackward = Callable[[float, Sequence[float]], None]
"""Told when the last layer's backward began, and when each layer's had ended, in their order."""
CallEnded = Callable[[Sequence[nn.Module], float | None, Sequence[float]], None]
"""Told of the layers of a call: the same of their backward once it has ended; None and when each
one's forward had, where that was computed again."""
on_backward: list[CallEnded] = []
"""Told of every call of this process."""


class Outputs(NamedTuple):
    """Of several layers one after the other."""

    between: Callable[[], Tensor]
    """Gives those of all but the last layer, [layers-1, ...], without gradients."""
    last: Tensor
    ended_s: Sequence[float]
    """When each layer had ended, by `time.perf_counter`."""


class OneCall(Protocol):
    """Computes its layers' forward and, by autograd, their backward."""

    def takes(self, x: Tensor) -> bool:
        """Whether it can compute such an input; else the layers have to be called one by one."""
        ...

    def forward(self, x: Tensor, tell_backward: TellBackward) -> Outputs:
        """Of an input that it takes."""
        ...

    def end(self) -> None:
        """After all micro-batches; raises RuntimeError where a weight, or where gradients lie, was
        changed meanwhile and not put back; or a layer while micro-batches were to come."""
        ...


class InOneCall(nn.Module):
    """Mixed into a layer that its neighbours of the same `prepare_call` can be computed with."""

    @staticmethod
    def prepare_call(layers: Sequence[nn.Module], microbatches: int) -> OneCall | None:
        """For so many micro-batches of one training step; None where they must be called one by
        one."""
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


def hooks_within(layers: Sequence[nn.Module]) -> list[Mapping[int, Any]]:
    """Where torch keeps hooks that are to be called between these layers, or that are more than a
    call can.

    Of the layers alone: what a layer calls within is its own matter. Before the first layer and
    after the last one `call_hooks_before` and `call_hooks_after` call those of
    `register_forward_pre_hook` and `register_forward_hook`.
    """
    found: list[Mapping[int, Any]] = []
    for layer in layers:
        found += [
            layer._backward_hooks,
            layer._backward_pre_hooks,
            layer._forward_hooks_with_kwargs,
            layer._forward_pre_hooks_with_kwargs,
        ]
    found += [layer._forward_pre_hooks for layer in layers[1:]]
    found += [layer._forward_hooks for layer in layers[:-1]]
    return found


def any_hook(places: Iterable[Mapping[int, Any]]) -> bool:
    """Whether one of these, or all modules, have one."""
    return any(places) or torch_module._has_any_global_hook()


def call_hooks_before(layer: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
    """What its forward is to be given, as torch's own call of a module has it."""
    for hook in list(layer._forward_pre_hooks.values()):
        changed = hook(layer, given)
        if changed is not None:
            given = changed if isinstance(changed, tuple) else (changed,)
    return given


def needs_no_input(hook: Hook) -> Hook:
    """Say of a forward hook that what it is given of the layer's input is all one to it."""
    hook.needs_no_input = True  # type: ignore[attr-defined]
    return hook


def call_hooks_after(
    layer: nn.Module, between: Callable[[], Tensor], context: object, output: Tensor
) -> tuple[Tensor, Tensor | None]:
    """What its callers are to be given, and its input, the last of `between`, if a hook was given
    that."""
    x: Tensor | None = None
    for hook in list(layer._forward_hooks.values()):
        if x is None and getattr(hook, "needs_no_input", False) is not True:
            x = between()[-1].requires_grad_()
        changed = hook(layer, (x, context), output)
        if changed is not None:
            output = changed
    return output, x
