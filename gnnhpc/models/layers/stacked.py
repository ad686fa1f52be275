"""Neighbouring layers of a stage that one call computes, to the same values in less time."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook


class Stack(Protocol):
    """Layers that one call computes in training; it adds gradients of parameters in place.

    It suits an engine whose micro-batches each have a backward of their own. Parameters and `.grad`
    may be replaced between two micro-batches, not between a forward and its backward.
    """

    layers: Sequence[nn.Module]

    def __init__(self, layers: Sequence[nn.Module]) -> None: ...

    def __call__(self, x: Tensor) -> Tensor | None:
        """The last layer's output; None where the layers have to be called one by one."""
        ...


class Stackable(nn.Module):
    """Mixed into a layer that can be stacked with neighbours of the same `stack`."""

    stack: ClassVar[type[Stack]]
    """The class of stacks of two or more such layers."""


def stacks_of(layers: Sequence[nn.Module]) -> dict[int, Stack]:
    """The stacks that can be formed of a stage's layers, by the index of their first layer."""
    kinds = (type(each).stack if isinstance(each, Stackable) else None for each in layers)
    stacks, first = {}, 0
    for kind, neighbours in itertools.groupby(kinds):
        end = first + len(list(neighbours))
        if kind is not None and end - first > 1:
            stacks[first] = kind(layers[first:end])
        first = end
    return stacks


def has_hooks(layers: Sequence[nn.Module]) -> bool:
    """Whether a hook would be called between these layers, if they were called one by one."""
    return _has_any_global_hook() or any(
        layer._forward_hooks
        or layer._forward_pre_hooks
        or layer._backward_hooks
        or layer._backward_pre_hooks
        for layer in layers
    )


def adds_in_place(parameters: Sequence[Tensor]) -> bool:
    """Whether a backward may add to the gradients of all parameters itself.

    Each must train, have a gradient to add to, and have no hook that autograd would call.
    """
    return torch.is_grad_enabled() and all(
        p.requires_grad
        and p.grad is not None
        and p.grad.is_contiguous()
        and not p._backward_hooks
        and not getattr(p, "_post_accumulate_grad_hooks", None)
        for p in parameters
    )
