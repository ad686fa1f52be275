"""Gradients of weights apart: what a micro-batch's backward leaves, and computing it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from gnnhpc.engines.autograd import backward
from gnnhpc.engines.stage import Stage
from gnnhpc.engines.timing import StepTimer
from gnnhpc.models.later_weights import LaterWeights


def nothing_left(stage: Stage, timer: StepTimer) -> LaterWeights:
    """For a micro-batch's backward through a stage, or a part of one, to leave gradients in."""
    return LaterWeights(lambda: timer.layer_going_back, stage.on_left)


def compute_left(
    later: LaterWeights, timer: StepTimer, on_layer: Sequence[Callable[[str], None]] = ()
) -> None:
    """Within a span: all that a backward has left, of each layer, which `on_layer` is told."""
    for left in later.left:
        if left.layer is not None:
            timer.layer_backward(left.layer, timer.clock.mark())
            for told in on_layer:
                told(left.layer)
        with torch.no_grad():
            gradient = left.compute()
        backward(left.weight, gradient)
    timer.layer_backward(None, timer.clock.mark())
