"""Gradients of weights that are computed after those of a stage's inputs (a split backward).

The stage before waits for gradients of inputs alone, so that gradients of weights can fill time in
which a stage would wait (Qi et al. 2024, arXiv:2401.10241, section 2). A layer whose backward has
one product for each of the two detaches its weight with `cut` and computes the second product by
`now_or_later`; other layers compute both at once.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

_thread = threading.local()


@dataclass(frozen=True)
class DeferredGradient:
    """The gradient of one weight, or of a tensor made from weights, for one micro-batch."""

    weight: Tensor
    compute: Callable[[], Tensor]
    """Returns the gradient in the weight's shape; to be called once, under `torch.no_grad`."""


@contextlib.contextmanager
def split_backward() -> Iterator[None]:
    """Around forwards of this thread whose backward defers gradients of weights."""
    before, _thread.splits = splits_backward(), True
    try:
        yield
    finally:
        _thread.splits = before


def splits_backward() -> bool:
    """Whether this thread is inside `split_backward`."""
    return getattr(_thread, "splits", False)


@contextlib.contextmanager
def deferring_to(deferred: list[DeferredGradient]) -> Iterator[None]:
    """Around the backward of such forwards: append gradients of weights to `deferred`, in the
    backward's order. A forward that is recomputed within it splits its backward too."""
    _thread.deferred = deferred
    try:
        with split_backward():
            yield
    finally:
        _thread.deferred = None


CutFrom = tuple[Tensor] | None
"""The weight of a deferred gradient, in a tuple that autograd does not look into; None where the
gradient is not deferred."""


def cut(weight: Tensor) -> tuple[Tensor, CutFrom]:
    """What a product takes in place of `weight`, and the weight whose gradient it defers.

    The product takes a detached leaf: autograd would call a parameter's hooks even where a backward
    returns no gradient for it.
    """
    if not (splits_backward() and weight.requires_grad and torch.is_grad_enabled()):
        return weight, None
    return weight.detach().requires_grad_(), (weight,)


def now_or_later(cut_from: CutFrom, compute: Callable[[], Tensor]) -> Tensor | None:
    """The gradient of a weight; None where it is deferred.

    Raises RuntimeError outside of `deferring_to`, where a deferred gradient would be lost.
    """
    if cut_from is None:
        return compute()
    deferred: list[DeferredGradient] | None = getattr(_thread, "deferred", None)
    if deferred is None:
        raise RuntimeError("a split backward runs outside of deferring_to")
    deferred.append(DeferredGradient(cut_from[0], compute))
    return None
