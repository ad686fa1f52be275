"""Backward from a loss or a given gradient, and the gradients that a split backward defers."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.variable import Variable

from gnnhpc.core.errors import GnnhpcError
from gnnhpc.models.layers.split_backward import DeferredGradient

_engine: Any = Variable._execution_engine


def backward(result: Tensor, gradient: Tensor | None) -> None:
    """Backward from a loss, or from an output whose gradient the next stage has sent.

    `result.backward(gradient)` is the same, but its Python takes a tenth of a millisecond where a
    kernel has driven that out of the caches, and compares the two shapes by means of sympy, which
    takes half a second to import. Megatron-LM's schedules call the engine of autograd so too.
    """
    if gradient is None:
        if result.numel() != 1:
            raise GnnhpcError(
                f"backward begins with a loss of one number, not of {list(result.shape)}"
            )
        # A copy, as a hook may change it in place.
        gradient = _one(result.dtype, result.device).clone().view_as(result)
    if gradient.shape != result.shape:
        raise GnnhpcError(
            f"a gradient of {list(gradient.shape)} was given for {list(result.shape)}"
        )
    _engine.run_backward(
        (result,),
        (gradient,),
        keep_graph=False,
        create_graph=False,
        inputs=(),
        allow_unreachable=True,
        accumulate_grad=True,
    )


@functools.cache
def _one(dtype: torch.dtype, device: torch.device) -> Tensor:
    """The gradient of a loss."""
    return torch.ones((), dtype=dtype, device=device)


def compute_deferred(deferred: Sequence[DeferredGradient]) -> None:
    """Compute all gradients that a backward has deferred, and add them to the weights'."""
    for each in deferred:
        with torch.no_grad():
            gradient = each.compute()
        backward(each.weight, gradient)
