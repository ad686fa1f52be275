"""Split backward: the gradients of weights that a micro-batch's backward has left for later."""

from __future__ import annotations

import torch

from gnnhpc.engines.autograd import backward
from gnnhpc.models.later_weights import LaterWeights


def compute_left(later: LaterWeights) -> None:
    """Compute all gradients that a backward has left, and add them to the weights' gradients."""
    for each in later.left:
        with torch.no_grad():
            gradient = each.compute()
        backward(each.weight, gradient)
