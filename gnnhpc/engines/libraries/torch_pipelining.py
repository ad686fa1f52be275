"""The engine on torch.distributed.pipelining, with static shapes and timed micro-batches."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)
from torch.nn.parallel import DistributedDataParallel

from gnnhpc.batches.batch import Batch
from gnnhpc.core.schedules import SPLIT_BACKWARD
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.engines.engine import (
    StageGradients,
    StagePlan,
    StepOutput,
    VirtualStagePlan,
    compute_deferred,
    first_input,
    parameters_of,
)
from gnnhpc.engines.native import ForwardOnly
from gnnhpc.engines.stage import Stage
from gnnhpc.engines.stage_graphs import Actions
from gnnhpc.engines.step_timer import StepTimer
from gnnhpc.models.layers.split_backward import DeferredGradient, deferring_to, split_backward

_OF_ONE_STAGE = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
_OF_VIRTUAL_STAGES = {
    "interleaved": ScheduleInterleaved1F1B,
    # With one virtual stage a stage it is ZB-H1.
    "zero-bubble": ScheduleInterleavedZeroBubble,
    "zbv": ScheduleZBVZeroBubble,
}
_DDP_OPTIONS = inspect.signature(DistributedDataParallel).parameters
_BUFFERS_OPTION = (
    "forward_sync_buffers" if "forward_sync_buffers" in _DDP_OPTIONS else "broadcast_buffers"
)
"""DDP's option to keep buffers equal; torch 2.13 renamed it."""
_ONE_BUCKET_MIB = 1024
"""Large enough for all gradients of a stage, so that there is one all-reduce."""


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

    A second schedule on the same stage could switch its backward communication off. Several virtual
    stages, and a split backward, are for one replica: DDP would reduce the gradients of each
    virtual stage by themselves, and at a backward's end.
    """

    def __init__(self, plan: StagePlan) -> None:
        self.plan = plan
        self.numbered = [NumberedStage(p.stage, is_first=p.is_first) for p in plan.virtual_stages]
        self.gradients = DdpReplicas(self._replicated(), plan.mesh, plan.timer)
        self.forward_only = ForwardOnly(plan, Actions())
        self.stages = [self._stage(place) for place in range(len(plan.virtual_stages))]
        settings: dict[str, Any] = {"loss_fn": self._loss, "scale_grads": False}
        if plan.schedule in _OF_VIRTUAL_STAGES:
            every: list[Any] = [*self.stages]
            self.schedule: Any = _OF_VIRTUAL_STAGES[plan.schedule](
                every, plan.microbatches, **settings
            )
        else:
            kind = _OF_ONE_STAGE[plan.schedule]
            self.schedule = kind(self.stages[0], plan.microbatches, **settings)
        self._numbers = torch.arange(plan.microbatches)
        self._inputs = self._numbers.to(plan.mesh.device)

    def _replicated(self) -> nn.Module:
        return self.numbered[0] if len(self.numbered) == 1 else nn.ModuleList(self.numbered)

    def _stage(self, place: int) -> TimedStage:
        plan, mesh, part = self.plan, self.plan.mesh, self.plan.virtual_stages[place]
        stage = TimedStage(
            self.gradients.module if len(plan.virtual_stages) == 1 else self.numbered[place],
            part.number,
            mesh.layout.stages * len(plan.virtual_stages),
            mesh.device,
            input_args=self._example_input(part),
            output_args=torch.empty(
                part.output_shape, dtype=plan.dtype, device=mesh.device, requires_grad=True
            ),
            group=mesh.forward,
        )
        stage.timer, stage.place = plan.timer, place
        if plan.schedule in SPLIT_BACKWARD:
            stage.dw_builder = stage.computes_deferred
        return stage

    def _example_input(self, part: VirtualStagePlan) -> Tensor:
        device = self.plan.mesh.device
        if part.is_first:
            return torch.zeros(1, dtype=torch.int64, device=device)
        return torch.empty(
            part.input_shape, dtype=self.plan.dtype, device=device, requires_grad=True
        )

    def _loss(self, output: Tensor, number: Tensor) -> Tensor:
        batch, last = self.numbered[-1].batch, self.stages[-1]
        with self.plan.timer.span("forward", last.newest, last.place):
            return self.plan.loss(output, batch.microbatches[int(number)], batch.valid_targets)

    def train_step(self, batch: Batch) -> StepOutput:
        plan, mesh = self.plan, self.plan.mesh
        for numbered in self.numbered:
            numbered.batch = batch
        args = (self._inputs,) if mesh.is_first else ()
        target = self._numbers if mesh.has_loss else None
        losses: list[Tensor] = []
        given = {"target": target, "losses": losses, "microbatch": self._numbers}
        output = self.schedule.step(*args, **given)
        plan.stage.end_minibatch()
        if not mesh.has_loss:
            return StepOutput()
        outputs = output.detach().split(plan.output_shape[0])
        return StepOutput(outputs, [loss.detach() for loss in losses])

    def evaluate(self, batch: Batch) -> Sequence[Tensor]:
        return self.forward_only.run(batch)


class DdpReplicas(StageGradients):
    """Wraps a stage in DDP if there are replicas and the stage has parameters."""

    def __init__(self, stage: nn.Module, mesh: Mesh, timer: StepTimer) -> None:
        self.timer = timer
        self.mesh = mesh
        self.module: nn.Module = stage
        self._parameters = parameters_of(stage)
        if mesh.replicas is not None and self._parameters:
            options: dict[str, Any] = {_BUFFERS_OPTION: False}
            self.module = DistributedDataParallel(
                stage,
                process_group=mesh.replicas,
                # No device_ids: with them DDP moves every tensor argument to the GPU, and the
                # number of the micro-batch, read there, would stop the host at each forward.
                **options,
                gradient_as_bucket_view=True,
                bucket_cap_mb=_ONE_BUCKET_MIB,
            )
            # DDP checks a hook's annotations at run time; a lambda has none.
            self.module.register_comm_hook(None, lambda _, bucket: self.reduce(bucket))
        else:
            for p in self._parameters:
                # Else the first gradient's form stays, and optimizers here take no sparse one.
                p.grad = torch.zeros_like(p)

    @property
    def flats(self) -> list[Tensor]:
        return [p.grad for p in self._parameters if p.grad is not None]

    def reduce(self, bucket: Any) -> torch.futures.Future[Tensor]:
        """Average one bucket of gradients over the replicas."""
        self.reductions += 1
        self.timer.gradients_ready()
        assert self.mesh.replicas is not None
        return allreduce_hook(self.mesh.replicas, bucket)
