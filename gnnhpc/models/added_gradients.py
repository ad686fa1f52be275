"""Layers whose backward adds to parameters' gradients itself, one micro-batch after another.

Autograd would make a tensor of each, add it, and run a node a parameter: of a micro-batch of few
images that takes as long as the arithmetic. An engine asks for it where every micro-batch has a
backward of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import TypeVar

import torch
from torch import Tensor, nn

Weights = TypeVar("Weights", bound=tuple[Tensor | None, ...])
_HOOKS = attrgetter("_post_accumulate_grad_hooks")


class AddsGradients(nn.Module):
    """Mixed into such a layer."""

    adds_gradients = False


def add_gradients_in_place(module: nn.Module) -> None:
    """Ask all layers in `module` that can for it, from now on."""
    for layer in module.modules():
        if isinstance(layer, AddsGradients):
            layer.adds_gradients = True


def can_add(parameters: Iterable[Tensor | None]) -> bool:
    """Whether all of them train, have a gradient to add to, and nobody changes it by a hook."""
    if not torch.is_grad_enabled():
        return False
    return all(
        p is None or (p.grad is not None and p.grad.is_contiguous() and trains_unchanged(p))
        for p in parameters
    )


def trains_unchanged(parameter: Tensor) -> bool:
    """Whether it trains, and nobody changes its gradient by a hook."""
    return parameter.requires_grad and not parameter._backward_hooks


def input_to_train(x: Tensor) -> Tensor | None:
    """To be given to a function of autograd beside x; None where x needs a gradient itself.

    Without an input that needs a gradient autograd would not call the backward.
    """
    return None if x.requires_grad else torch.empty(0, requires_grad=True)


def gradients_of(parameters: Weights) -> Weights:
    """The tensors to add to, in the same form; zeros where one was taken away since `can_add`."""
    for parameter in parameters:
        if parameter is not None and parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    found = (None if p is None else p.grad for p in parameters)
    return type(parameters)._make(found)  # type: ignore[attr-defined, no-any-return]


def is_told(parameter: Tensor) -> bool:
    """Whether it has hooks that are called once a gradient is there."""
    return bool(_HOOKS(parameter))


def tell_added(parameters: Iterable[Tensor | None]) -> None:
    """Call the hooks that autograd calls once it has added to a gradient."""
    for parameter in parameters:
        hooks = None if parameter is None else _HOOKS(parameter)
        for hook in tuple(hooks.values()) if hooks else ():
            hook(parameter)
