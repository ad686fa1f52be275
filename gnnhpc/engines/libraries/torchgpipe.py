"""The engine on torchgpipe's GPipe: one process holds all stages of a replica, on its devices.

On a CPU the partitions share torchgpipe's one worker: chunks without speed. GPipe passes tensors
alone, so a micro-batch is a number: a float that needs a gradient, as torchgpipe's checkpointing
takes no output without one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torchgpipe import GPipe, is_checkpointing, is_recomputing

from gnnhpc.batches.batch import Batch
from gnnhpc.engines.activation_checkpointing import Buffers, buffers_of, recomputed
from gnnhpc.engines.engine import StagePlan, StepOutput, first_input
from gnnhpc.engines.gradient_sync import FlatGradients
from gnnhpc.engines.stage import Stage
from gnnhpc.engines.step_timer import StepTimer
from gnnhpc.graphs.blocks import GraphChunk
from gnnhpc.models.model import Context

Pair = tuple[Tensor, Tensor]
"""An activation [rows, ...] and the number of its micro-batch, float [1]."""


@dataclass
class PresentStep:
    """What partitions need to know of the present step, as GPipe passes them a number alone."""

    timer: StepTimer
    several_devices: bool = False
    """Partitions then compute at the same time, and have no spans one by one."""
    batch: Batch | None = None
    _moved: dict[tuple[torch.device, int], tuple[GraphChunk, GraphChunk]] = field(
        default_factory=dict
    )
    """(device, identity of a chunk) -> the chunk, which is the same in every step, and its copy."""

    def context(self, microbatch: int, device: torch.device) -> Context:
        """A micro-batch's context, with its chunk on the partition's device."""
        assert self.batch is not None
        context = self.batch.microbatches[microbatch].context
        chunk = context.graph
        if chunk is None or chunk.nodes.device == device:
            return context
        key = (device, id(chunk))
        if key not in self._moved:
            self._moved[key] = (chunk, chunk.to(device))
        return replace(context, graph=self._moved[key][1])

    @contextmanager
    def forward(self, microbatch: int) -> Iterator[None]:
        """Around a partition's forward, in the thread that torchgpipe has begun for its device."""
        # torch sets OpenMP's number of threads for this one when it is asked, and not before.
        torch.get_num_threads()
        if self.several_devices:
            yield
            return
        self.timer.begin("forward", microbatch)
        yield
        self.timer.end()


class Partition(nn.Module):
    """Computes a stage on its device; the first takes a micro-batch's inputs itself."""

    def __init__(
        self, stage: Stage, device: torch.device, present: PresentStep, *, is_last: bool
    ) -> None:
        super().__init__()
        self.stage = stage
        self.device = device
        self.present = present
        self.is_last = is_last
        self._forwards = 0
        """Forwards in this step."""
        self._to_recompute: list[tuple[int, Buffers]] = []
        """Micro-batches whose forward has been, and may be recomputed with the same buffers."""

    def forward(self, x: Tensor | Pair) -> Pair | Tensor:
        """The output, and but for the last partition the number of its micro-batch."""
        activation, number = x if isinstance(x, tuple) else (None, x)
        present = self.present
        microbatch, buffers = self._next_microbatch()
        context = present.context(microbatch, self.device)
        assert present.batch is not None
        inputs = present.batch.microbatches[microbatch]
        stage_input = first_input(inputs) if activation is None else activation
        with (
            recomputed(self.stage, buffers, present.timer)
            if is_recomputing()
            else present.forward(microbatch)
        ):
            output: Tensor = self.stage(stage_input, context)
        if activation is None and output is stage_input:
            # Autograd marks what it is given as the checkpointed output: not the batch's own.
            output = output.detach()
        if is_recomputing() and not output.requires_grad:
            output = _Tied.apply(output, number)  # type: ignore[no-untyped-call]
        return output if self.is_last else (output, number)

    def begin_step(self) -> None:
        self._forwards, self._to_recompute = 0, []

    def _next_microbatch(self) -> tuple[int, Buffers]:
        """The micro-batch and what its recomputation starts from, by torchgpipe's order: forwards
        from first to last, then from last to first those that it recomputes. To read the number
        from a GPU would stop the host."""
        if is_recomputing():
            return self._to_recompute.pop()
        microbatch, self._forwards = self._forwards, self._forwards + 1
        if not is_checkpointing():
            return microbatch, []
        self._to_recompute.append((microbatch, buffers_of(self.stage)))
        return self._to_recompute[-1]


class _Tied(torch.autograd.Function):
    """An output that needs a gradient and passes none on: of a partition with nothing to train,
    such as one of dropout alone, torchgpipe goes backward through what it has recomputed.
    """

    @staticmethod
    def forward(ctx: Any, output: Tensor, number: Tensor) -> Tensor:
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None]:
        return None, None


class TorchgpipeEngine:
    """torchgpipe's own schedule and checkpointing over partitions of this process's stage.

    Its `deferred_batch_norm` is not used: it does not know our fused layers' BatchNorm, and its
    running variance is the biased one.
    """

    graphs = None

    def __init__(self, plan: StagePlan) -> None:
        self.plan = plan
        several = len(set(plan.mesh.devices)) > 1
        self.present = PresentStep(plan.timer, several)
        stages = plan.stage.cut_into(plan.cut)
        # Partitions on one CPU share a worker, as those of one GPU do.
        devices = list(plan.mesh.devices) * (len(stages) if len(plan.mesh.devices) == 1 else 1)
        self.partitions = [
            Partition(stage, device, self.present, is_last=stage is stages[-1])
            for stage, device in zip(stages, devices, strict=True)
        ]
        self.gpipe = GPipe(
            nn.Sequential(*self.partitions),
            balance=[1] * len(stages),
            devices=devices,
            chunks=plan.experiment.microbatches,
            checkpoint=plan.experiment.activation_checkpointing,
        )
        # After GPipe has moved the layers: gradients lie beside their parameters.
        self.gradients = FlatGradients(plan)

    def train_step(self, batch: Batch) -> StepOutput:
        plan, timer = self.plan, self.plan.timer
        self.gradients.zero()
        outputs = self._forward(batch, training=True)
        losses = []
        for m, (output, microbatch) in enumerate(zip(outputs, batch.microbatches, strict=True)):
            timer.begin("forward", m)
            losses.append(plan.loss(output, microbatch, batch.valid_targets))
            timer.end()
        # torchgpipe has connected the graphs of the micro-batches in its order.
        timer.begin("backward")
        torch.autograd.backward(losses)
        timer.end()
        self.gradients.average()
        plan.stage.end_minibatch()
        return StepOutput([x.detach() for x in outputs], [loss.detach() for loss in losses])

    def evaluate(self, batch: Batch) -> Sequence[Tensor]:
        with torch.no_grad():
            return self._forward(batch, training=False)

    def _forward(self, batch: Batch, *, training: bool) -> tuple[Tensor, ...]:
        """Each micro-batch's output, on the first device, where its targets are."""
        first = self.plan.mesh.device
        self.present.batch = batch
        for partition in self.partitions:
            partition.begin_step()
        # Not `train()`: the loop sets the modes of the layers.
        self.gpipe.training = training
        numbers = torch.arange(self.plan.experiment.microbatches, dtype=torch.float32, device=first)
        if self.present.several_devices:
            self.plan.timer.begin("forward")
            output: Tensor = self.gpipe(numbers.requires_grad_()).to(first)
            self.plan.timer.end()
        else:
            output = self.gpipe(numbers.requires_grad_())
        outputs: tuple[Tensor, ...] = output.split(self.plan.virtual_stages[-1].output_shape[0])
        return outputs
