"""torch.distributed.pipelining, with static shapes and spans around what it computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from gnnhpc.engines.base import Plan, Trained, split
from gnnhpc.engines.ddp import DdpReplicas
from gnnhpc.engines.native import ForwardOnly
from gnnhpc.engines.timing import StepTimer

_SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


class TimedStage(PipelineStage):
    """A pipeline stage whose forward and backward of each micro-batch leave a span."""

    timer: StepTimer
    replicas: DdpReplicas
    newest: int | None = None
    """The micro-batch that went forward last; its loss comes next."""

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        self.newest = fwd_chunk_id
        with self.timer.span("forward", fwd_chunk_id):
            return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> None:
        with self.timer.span("backward", bwd_chunk_id):
            super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)
            self.timer.layer_backward(None, self.timer.clock.mark())
        if kwargs.get("last_backward"):
            self.replicas.split_backward()


class PipeliningEngine:
    """One schedule object a stage, for training alone: a second one on the same stage can switch
    its backward communication off. Evaluation goes its own way.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.gradients = DdpReplicas(plan.stage, plan.mesh, plan.timer)
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
        self.stage.replicas = self.gradients
        self.schedule = _SCHEDULES[plan.schedule](
            self.stage, plan.microbatches, loss_fn=self._loss, scale_grads=False
        )
        self._which = torch.arange(plan.microbatches)

    def _example_input(self) -> Tensor:
        plan = self.plan
        if plan.mesh.is_first:
            assert plan.example is not None
            return plan.example
        return torch.empty(
            plan.input_shape, dtype=plan.dtype, device=plan.mesh.device, requires_grad=True
        )

    def _loss(self, output: Tensor, target: Tensor) -> Tensor:
        with self.plan.timer.span("forward", self.stage.newest):
            return self.plan.loss(output, target)

    def train_step(self, inputs: Tensor | None, targets: Tensor | None) -> Trained:
        plan, mesh = self.plan, self.plan.mesh
        plan.inputs(inputs)
        plan.targets(targets)
        args = (inputs,) if mesh.is_first else ()
        target = targets if mesh.is_last else None
        losses: list[Tensor] = []
        output = self.schedule.step(*args, target=target, losses=losses, microbatch=self._which)
        if not mesh.is_last:
            return Trained()
        outputs = split(output.detach(), plan.microbatches, plan.output_shape[0])
        return Trained(outputs, [loss.detach() for loss in losses])

    def evaluate(self, inputs: Tensor | None) -> Sequence[Tensor]:
        return self.forward_only.run(inputs)
