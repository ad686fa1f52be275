"""One stage in its own process: micro-batches one after another, gradients accumulated."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gnnhpc.engines.base import Plan, Trained
from gnnhpc.engines.gradients import Gradients


class SequentialEngine:
    """The twin that every pipeline is compared with: same micro-batches, same sums, one process.

    Each micro-batch goes forward and backward before the next, so one micro-batch's activations
    are held at a time.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.gradients = Gradients(plan.stage, plan.mesh, plan.timer)

    def train_step(self, inputs: Tensor | None, targets: Tensor | None) -> Trained:
        plan, timer = self.plan, self.plan.timer
        pairs = zip(plan.inputs(inputs), plan.targets(targets), strict=True)
        outputs, losses = [], []
        for m, (x, target) in enumerate(pairs):
            with timer.span("forward", m):
                output = plan.stage(x, torch.tensor([m]))
                loss = plan.loss(output, target)
            with timer.span("backward", m):
                loss.backward()
                timer.layer_backward(None, timer.clock.mark())
            outputs.append(output.detach())
            losses.append(loss.detach())
        self.gradients.average()
        return Trained(outputs, losses)

    def evaluate(self, inputs: Tensor | None) -> Sequence[Tensor]:
        plan = self.plan
        outputs = []
        with torch.no_grad():
            for m, x in enumerate(plan.inputs(inputs)):
                with plan.timer.span("forward", m):
                    outputs.append(plan.stage(x, torch.tensor([m])))
        return outputs
