"""The engine on torch.distributed.pipelining, with static shapes and timed micro-batches."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)
from torch.distributed.pipelining.schedules import PipelineScheduleMulti

from gnnhpc.batches.batch import Batch
from gnnhpc.engines.cuda_graph import Actions
from gnnhpc.engines.engine import StagePlan, StepOutput, compute_deferred, first_input
from gnnhpc.engines.gradient_sync import FlatGradients
from gnnhpc.engines.native import ForwardOnly
from gnnhpc.engines.stage import Stage
from gnnhpc.engines.step_timer import StepTimer
from gnnhpc.models.layers.split_backward import DeferredGradient, deferring_to, split_backward

_SCHEDULES = {
    "gpipe": ScheduleGPipe,
    "1f1b": Schedule1F1B,
    "interleaved": ScheduleInterleaved1F1B,
    # With one virtual stage a stage it is ZB-H1.
    "zero-bubble": ScheduleInterleavedZeroBubble,
    "zbv": ScheduleZBVZeroBubble,
}


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
        one = self.batch.microbatches[int(microbatch)]
        output: Tensor = self.stage(first_input(one) if self.is_first else x, one.context)
        # Torch's schedules send it as it is, and gloo nothing else.
        return output.contiguous()


class TimedStage(PipelineStage):
    """A pipeline stage that records a span for each micro-batch's forward and backward."""

    timer: StepTimer
    place: int = 0
    """Number among the virtual stages of this rank."""
    newest: int | None = None
    """The micro-batch of the last forward, whose loss is computed next."""
    deferred: list[DeferredGradient] | None = None
    """Takes the gradients that a backward defers; None without a split backward."""

    def _get_init_p2p_neighbors_ops(self) -> list[dist.P2POp]:
        """torch's first messages; in torch 2.9 gloo fails, as int64 is received as float32."""
        operations: list[dist.P2POp] = super()._get_init_p2p_neighbors_ops()
        for each in operations:
            each.tensor = each.tensor.float()
        return operations

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        self.newest = fwd_chunk_id
        weights = split_backward() if self.dw_builder is not None else contextlib.nullcontext()
        with weights, self.timer.span("forward", fwd_chunk_id, self.place):
            return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> None:
        weights: AbstractContextManager[None] = contextlib.nullcontext()
        if self.dw_builder is not None:
            self.deferred = []
            weights = deferring_to(self.deferred)
        with weights, self.timer.span("backward", bwd_chunk_id, self.place):
            super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)

    def computes_deferred(self) -> Callable[[], None]:
        """A function that computes the gradients that the last backward has deferred."""
        deferred = self.deferred
        assert deferred is not None
        return partial(compute_deferred, deferred)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> None:
        with self.timer.span("weights", bwd_chunk_id, self.place):
            super().backward_weight_one_chunk(bwd_chunk_id, *args, **kwargs)


class PipeliningEngine:
    """One schedule object a rank, for training only; evaluation uses `ForwardOnly`.

    A second schedule on the same stage could switch its backward communication off.
    """

    graphs = None

    def __init__(self, plan: StagePlan) -> None:
        self.plan = plan
        self.numbered = [NumberedStage(p.stage, is_first=p.is_first) for p in plan.virtual_stages]
        self.gradients = FlatGradients(plan)
        self.forward_only = ForwardOnly(plan, Actions())
        self.stages = [self._stage(place) for place in range(len(plan.virtual_stages))]
        kind, count = _SCHEDULES[plan.experiment.schedule], plan.experiment.microbatches
        stages: Any = self.stages if issubclass(kind, PipelineScheduleMulti) else self.stages[0]
        self.schedule: Any = kind(stages, count, loss_fn=self._loss, scale_grads=False)
        self._numbers = torch.arange(count)
        self._inputs = self._numbers.to(plan.mesh.device)

    def _stage(self, place: int) -> TimedStage:
        plan, mesh, part = self.plan, self.plan.mesh, self.plan.virtual_stages[place]
        sent: dict[str, Any] = {"dtype": plan.dtype, "device": mesh.device, "requires_grad": True}
        number = torch.zeros(1, dtype=torch.int64, device=mesh.device)
        stage = TimedStage(
            self.numbered[place],
            part.number,
            mesh.layout.stages * len(plan.virtual_stages),
            mesh.device,
            input_args=number if part.is_first else torch.empty(part.input_shape, **sent),
            output_args=torch.empty(part.output_shape, **sent),
            group=mesh.pipeline,
        )
        stage.timer, stage.place = plan.timer, place
        if plan.experiment.split_backward:
            stage.dw_builder = stage.computes_deferred
        return stage

    def _loss(self, output: Tensor, number: Tensor) -> Tensor:
        batch, last = self.numbered[-1].batch, self.stages[-1]
        with self.plan.timer.span("forward", last.newest, last.place):
            return self.plan.loss(output, batch.microbatches[int(number)], batch.valid_targets)

    def train_step(self, batch: Batch) -> StepOutput:
        plan, mesh = self.plan, self.plan.mesh
        self.gradients.zero()
        for numbered in self.numbered:
            numbered.batch = batch
        args = (self._inputs,) if mesh.is_first else ()
        target = self._numbers if mesh.has_loss else None
        losses: list[Tensor] = []
        output = self.schedule.step(*args, target=target, losses=losses, microbatch=self._numbers)
        self.gradients.average()
        plan.stage.end_minibatch()
        if not mesh.has_loss:
            return StepOutput()
        outputs = output.detach().split(plan.virtual_stages[-1].output_shape[0])
        return StepOutput(outputs, [loss.detach() for loss in losses])

    def evaluate(self, batch: Batch) -> Sequence[Tensor]:
        return self.forward_only.run(batch)
