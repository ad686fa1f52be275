"""The engine on torch.distributed.pipelining, with static shapes and timed micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from gnnhpc.batches.batch import Batch
from gnnhpc.engines.base import StagePlan, StepOutput, first_input
from gnnhpc.engines.ddp_gradients import DdpReplicas
from gnnhpc.engines.native import ForwardOnly
from gnnhpc.engines.stage import Stage
from gnnhpc.engines.timing import StepTimer

_SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


class NumberedStage(nn.Module):
    """A stage as torch's schedules call it: they pass only tensors, so a micro-batch is its number.

    `batch` has the micro-batch of each number; the first stage takes its inputs from there.
    """

    batch: Batch

    def __init__(self, stage: Stage, *, is_first: bool) -> None:
        super().__init__()
        self.stage = stage
        self.is_first = is_first

    def forward(self, x: Tensor, microbatch: Tensor) -> Tensor:
        """`x` [rows, ...], or the number on the first stage; `microbatch` int64 [1], on CPU."""
        given = self.batch.microbatches[int(microbatch)]
        output: Tensor = self.stage(first_input(given) if self.is_first else x, given.context)
        return output


class TimedStage(PipelineStage):
    """A pipeline stage that records a span for each micro-batch's forward and backward."""

    timer: StepTimer
    newest: int | None = None
    """The micro-batch of the last forward, whose loss is computed next."""

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        self.newest = fwd_chunk_id
        with self.timer.span("forward", fwd_chunk_id):
            return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> None:
        with self.timer.span("backward", bwd_chunk_id):
            super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)
            self.timer.layer_backward(None, self.timer.clock.mark())


class PipeliningEngine:
    """One schedule object a stage, for training only; evaluation uses `ForwardOnly`.

    A second schedule on the same stage could switch its backward communication off.
    """

    def __init__(self, plan: StagePlan) -> None:
        self.plan = plan
        self.numbered = NumberedStage(plan.stage, is_first=plan.mesh.is_first)
        self.gradients = DdpReplicas(self.numbered, plan.mesh, plan.timer)
        self.forward_only = ForwardOnly(plan)
        mesh = plan.mesh
        self.stage = TimedStage(
            self.gradients.module,
            mesh.stage,
            mesh.layout.stages,
            mesh.device,
            input_args=self._example_input(),
            output_args=torch.empty(
                plan.output_shape, dtype=plan.dtype, device=mesh.device, requires_grad=True
            ),
            group=mesh.forward,
        )
        self.stage.timer = plan.timer
        self.schedule = _SCHEDULES[plan.schedule](
            self.stage, plan.microbatches, loss_fn=self._loss, scale_grads=False
        )
        self._numbers = torch.arange(plan.microbatches)
        self._inputs = self._numbers.to(mesh.device)

    def _example_input(self) -> Tensor:
        plan = self.plan
        if plan.mesh.is_first:
            return torch.zeros(1, dtype=torch.int64, device=plan.mesh.device)
        return torch.empty(
            plan.input_shape, dtype=plan.dtype, device=plan.mesh.device, requires_grad=True
        )

    def _loss(self, output: Tensor, number: Tensor) -> Tensor:
        batch = self.numbered.batch
        with self.plan.timer.span("forward", self.stage.newest):
            return self.plan.loss(output, batch.microbatches[int(number)], batch.labelled)

    def train_step(self, batch: Batch) -> StepOutput:
        plan, mesh = self.plan, self.plan.mesh
        plan.check(batch)
        self.numbered.batch = batch
        args = (self._inputs,) if mesh.is_first else ()
        target = self._numbers if mesh.is_last else None
        losses: list[Tensor] = []
        output = self.schedule.step(*args, target=target, losses=losses, microbatch=self._numbers)
        if not mesh.is_last:
            return StepOutput()
        outputs = output.detach().split(plan.output_shape[0])
        return StepOutput(outputs, [loss.detach() for loss in losses])

    def evaluate(self, batch: Batch) -> Sequence[Tensor]:
        return self.forward_only.run(batch)
