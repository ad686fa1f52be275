"""The engine of a single stage: micro-batches one after another, gradients accumulated."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import torch
from torch import Tensor

from gnnhpc.batches.batch import Batch
from gnnhpc.engines.engine import StagePlan, StepOutput, backward, first_input
from gnnhpc.engines.gradient_sync import gradients_of


class SequentialEngine:
    """The engine that every pipeline is compared with: same micro-batches, same sums, one process.

    Each micro-batch goes forward and backward before the next, so one micro-batch's activations
    are held at a time.
    """

    def __init__(self, plan: StagePlan) -> None:
        self.plan = plan
        self.gradients = gradients_of(plan, [plan.microbatches - 1])
        plan.stage.use_stacks()

    def train_step(self, batch: Batch) -> StepOutput:
        plan, timer = self.plan, self.plan.timer
        outputs, losses = [], []
        last = plan.microbatches - 1
        for m, microbatch in enumerate(batch.microbatches):
            timer.begin("forward", m)
            output = plan.stage(first_input(microbatch), microbatch.context)
            loss = plan.loss(output, microbatch, batch.valid_targets)
            timer.end()
            with self.gradients.last_of(0) if m == last else contextlib.nullcontext():
                timer.begin("backward", m)
                backward(loss, None)
                timer.end()
            outputs.append(output.detach())
            losses.append(loss.detach())
        self.gradients.average()
        return StepOutput(outputs, losses)

    def evaluate(self, batch: Batch) -> Sequence[Tensor]:
        timer, outputs = self.plan.timer, []
        with torch.no_grad():
            for m, microbatch in enumerate(batch.microbatches):
                timer.begin("forward", m)
                outputs.append(self.plan.stage(first_input(microbatch), microbatch.context))
                timer.end()
        return outputs
