"""The engine of a single stage: micro-batches one after another, gradients accumulated."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import torch
from torch import Tensor

from gnnhpc.batches.batch import Batch
from gnnhpc.engines.autograd import backward
from gnnhpc.engines.base import StagePlan, StepOutput, first_input
from gnnhpc.engines.overlapped_gradients import gradients_of


class SequentialEngine:
    """The twin that every pipeline is compared with: same micro-batches, same sums, one process.

    Each micro-batch goes forward and backward before the next, so one micro-batch's activations
    are held at a time.
    """

    def __init__(self, plan: StagePlan) -> None:
        self.plan = plan
        self.gradients = gradients_of(plan, [plan.microbatches - 1])

    def train_step(self, batch: Batch) -> StepOutput:
        plan, timer = self.plan, self.plan.timer
        plan.check(batch)
        outputs, losses = [], []
        with plan.stage.one_step(plan.microbatches):
            for m, microbatch in enumerate(batch.microbatches):
                with timer.span("forward", m):
                    output = plan.stage(first_input(microbatch), microbatch.context)
                    loss = plan.loss(output, microbatch, batch.labelled)
                last = m == plan.microbatches - 1
                with self.gradients.last_of(0) if last else contextlib.nullcontext():
                    self._backward(loss, m)
                outputs.append(output.detach())
                losses.append(loss.detach())
        self.gradients.average()
        return StepOutput(outputs, losses)

    def _backward(self, loss: Tensor, m: int) -> None:
        timer = self.plan.timer
        with timer.span("backward", m):
            backward(loss, None)
            timer.layer_backward(None, timer.clock.mark())

    def evaluate(self, batch: Batch) -> Sequence[Tensor]:
        plan = self.plan
        plan.check(batch)
        outputs = []
        with torch.no_grad():
            for m, microbatch in enumerate(batch.microbatches):
                with plan.timer.span("forward", m):
                    outputs.append(plan.stage(first_input(microbatch), microbatch.context))
        return outputs
