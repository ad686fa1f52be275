"""Gradients of weights that are left for later, when those of a stage's inputs are computed.

The stage before waits for gradients of inputs alone (Qi et al. 2024, arXiv:2401.10241, section 2),
so an engine may compute the others where it would wait. A layer whose backward has a product for
each of the two cuts its weight off (`cut`) and asks for the second one by `now_or_later`; others
compute both at once.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

_of_thread = threading.local()


class LeavesWeights(nn.Module):
    """Mixed into layers whose backward asks here."""


def leaves_weights(module: nn.Module) -> bool:
    """Whether a layer in it computes gradients of weights apart: such a one whose weights train."""
    return any(
        any(p.requires_grad and p.ndim == 2 for p in layer.parameters())
        for layer in module.modules()
        if isinstance(layer, LeavesWeights)
    )


@dataclass
class LeftGradient:
    """Of one weight, or of a tensor made from weights, for one micro-batch."""

    weight: Tensor
    compute: Callable[[], Tensor]
    """Computes the gradient, in the weight's shape; to be called once, without autograd."""


@dataclass
class LaterWeights:
    """The gradients that a micro-batch's backward leaves, in the order of the backward."""

    left: list[LeftGradient] = field(default_factory=list)


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """Around forwards of the calling thread whose backward is to leave gradients of weights."""
    before, _of_thread.apart = is_apart(), True
    try:
        yield
    finally:
        _of_thread.apart = before


def is_apart() -> bool:
    return getattr(_of_thread, "apart", False)


@contextlib.contextmanager
def leaving(later: LaterWeights) -> Iterator[None]:
    """Around the backward of such forwards: gradients of weights are left to `later`."""
    _of_thread.later = later
    try:
        # Forwards that are computed again.
        with apart():
            yield
    finally:
        _of_thread.later = None


LeftFor = tuple[Tensor] | None
"""The weight whose gradient is left, which autograd is not to see; None where it is not left."""


def cut(weight: Tensor) -> tuple[Tensor, LeftFor]:
    """What a product takes for `weight`, and whose gradient its backward leaves.

    Autograd tells a parameter's hooks of a gradient even where a backward gives it none, so the
    product takes a tensor that ends at itself.
    """
    if not (is_apart() and weight.requires_grad and torch.is_grad_enabled()):
        return weight, None
    return weight.detach().requires_grad_(), (weight,)


def now_or_later(left_for: LeftFor, compute: Callable[[], Tensor]) -> Tensor | None:
    """The gradient of a weight; None where it is left for later.

    Raises RuntimeError where it is to be left and nobody takes it: it would be lost.
    """
    if left_for is None:
        return compute()
    later: LaterWeights | None = getattr(_of_thread, "later", None)
    if later is None:
        raise RuntimeError("the gradient of a weight was to be left for later, and nobody takes it")
    later.left.append(LeftGradient(left_for[0], compute))
    return None
