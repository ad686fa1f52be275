"""The engine of a single stage: micro-batches one after another, gradients accumulated.

On a GPU a step is replayed as a CUDA graph where the plan says so, but for profiled steps.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gnnhpc.batches.batch import Batch
from gnnhpc.core.schedules import Action
from gnnhpc.engines.cuda_graph import Held, graphs_of
from gnnhpc.engines.engine import StagePlan, StepOutput, backward, first_input
from gnnhpc.engines.gradient_sync import gradients_of
from gnnhpc.records.schema import Phase


class SequentialEngine:
    """The engine that every pipeline is compared with: same micro-batches, same sums, one process.

    Each micro-batch goes forward and backward before the next, so one micro-batch's activations
    are held at a time.
    """

    def __init__(self, plan: StagePlan) -> None:
        self.plan = plan
        self.gradients = gradients_of(plan, [plan.experiment.microbatches - 1])
        self.graphs = graphs_of(plan)
        plan.stage.use_stacks()

    def train_step(self, batch: Batch) -> StepOutput:
        output = self._computed("train", batch, self._forward_backward)
        self.gradients.average()
        return output

    def evaluate(self, batch: Batch) -> Sequence[Tensor]:
        return self._computed("test", batch, self._forward).outputs

    def _computed(
        self, phase: Phase, batch: Batch, compute: Callable[[Batch], StepOutput]
    ) -> StepOutput:
        """A step by `compute`, or by a replay of what it did, as one action."""
        if self.graphs is None:
            return compute(batch)
        batch = self.graphs.begin(phase, batch)

        def work(held: Held) -> tuple[Tensor, ...]:
            output = compute(batch)
            return (*output.outputs, *output.losses)

        inputs, count = first_input(batch.microbatches[0]), len(batch.microbatches)
        _, results = self.graphs.run(Action("forward", 0), Held(inputs), work)
        self.graphs.end()
        return StepOutput(results[:count], results[count:])

    def _forward_backward(self, batch: Batch) -> StepOutput:
        plan, timer = self.plan, self.plan.timer
        outputs, losses = [], []
        # In the graph, where it takes no launch of its own.
        self.gradients.zero()
        last = plan.experiment.microbatches - 1
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
        plan.stage.end_minibatch()
        return StepOutput(outputs, losses)

    def _forward(self, batch: Batch) -> StepOutput:
        timer, outputs = self.plan.timer, []
        with torch.no_grad():
            for m, microbatch in enumerate(batch.microbatches):
                timer.begin("forward", m)
                outputs.append(self.plan.stage(first_input(microbatch), microbatch.context))
                timer.end()
        return StepOutput(outputs)
