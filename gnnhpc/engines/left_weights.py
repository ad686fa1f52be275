"""Computes gradients of weights that a split backward has deferred."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gnnhpc.engines.autograd import backward
from gnnhpc.engines.timing import StepTimer
from gnnhpc.models.layers.split_backward import DeferredGradient


def compute_deferred(deferred: Sequence[DeferredGradient], timer: StepTimer) -> None:
    """Compute all that a micro-batch's backward has deferred and add it to the gradients."""
    for each in deferred:
        with torch.no_grad():
            gradient = each.compute()
        backward(each.weight, gradient)
    timer.layer_backward(None, timer.clock.mark())
