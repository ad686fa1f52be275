"""Split backward: computes the gradients of weights that a micro-batch's backward has deferred."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gnnhpc.engines.autograd import backward
from gnnhpc.models.layers.split_backward import DeferredGradient


def compute_deferred(deferred: Sequence[DeferredGradient]) -> None:
    """Compute all gradients that a backward has deferred, and add them to the weights'."""
    for each in deferred:
        with torch.no_grad():
            gradient = each.compute()
        backward(each.weight, gradient)
