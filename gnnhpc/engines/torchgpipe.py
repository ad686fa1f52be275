"""The engine on torchgpipe's GPipe: one process holds all stages of a replica, on its devices.

On a CPU the partitions share torchgpipe's one worker: chunks without speed.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torchgpipe import GPipe

from gnnhpc.batches.batch import Batch
from gnnhpc.engines.engine import StagePlan, StepOutput
from gnnhpc.engines.gradient_sync import FlatGradients
from gnnhpc.engines.torchgpipe_partition import Partition, PresentStep


class TorchgpipeEngine:
    """torchgpipe's own schedule and checkpointing over partitions of this process's stage.

    Its `deferred_batch_norm` is not used: it does not know our fused layers' BatchNorm, and its
    running variance is the biased one.
    """

    def __init__(self, plan: StagePlan) -> None:
        self.plan = plan
        several = len(set(plan.mesh.devices)) > 1
        self.present = PresentStep(plan.timer, several)
        stages = plan.stage.cut_into(plan.cut)
        # Partitions on one CPU share a worker, as those of one GPU do.
        devices = list(plan.mesh.devices) * (len(stages) if len(plan.mesh.devices) == 1 else 1)
        self._partitions = [
            Partition(stage, device, self.present, is_last=stage is stages[-1])
            for stage, device in zip(stages, devices, strict=True)
        ]
        self.gpipe = GPipe(
            nn.Sequential(*self._partitions),
            balance=[1] * len(stages),
            devices=devices,
            chunks=plan.microbatches,
            checkpoint=plan.recomputation,
        )
        # After GPipe has moved the layers: gradients lie beside their parameters.
        self.gradients = FlatGradients(plan.stage, plan.mesh, plan.timer)

    @property
    def partitions(self) -> list[list[str]]:
        """The layers of each of GPipe's partitions."""
        return [
            [
                spec.name
                for module in partition.children()
                if isinstance(module, Partition)
                for spec in module.stage.specs
            ]
            for partition in self.gpipe.partitions
        ]

    def train_step(self, batch: Batch) -> StepOutput:
        plan, timer = self.plan, self.plan.timer
        outputs = self._forward(batch, training=True)
        losses = []
        for m, (output, microbatch) in enumerate(zip(outputs, batch.microbatches, strict=True)):
            timer.begin("forward", m)
            losses.append(plan.loss(output, microbatch, batch.labelled))
            timer.end()
        # torchgpipe has connected the graphs of the micro-batches in its order.
        timer.begin("backward")
        torch.autograd.backward(losses)
        self._wait_for_devices()
        timer.end()
        self.gradients.average()
        return StepOutput([x.detach() for x in outputs], [loss.detach() for loss in losses])

    def evaluate(self, batch: Batch) -> Sequence[Tensor]:
        with torch.no_grad():
            return self._forward(batch, training=False)

    def _forward(self, batch: Batch, *, training: bool) -> tuple[Tensor, ...]:
        """Each micro-batch's output, on the first device, where its targets are."""
        first = self.plan.mesh.device
        self.present.batch = batch
        for partition in self._partitions:
            partition.begin_step()
        # Not `train()`: the loop sets the modes of the layers.
        self.gpipe.training = training
        numbers = torch.arange(self.plan.microbatches, dtype=torch.float32, device=first)
        if self.present.several_devices:
            self.plan.timer.begin("forward")
            output: Tensor = self.gpipe(numbers.requires_grad_()).to(first)
            self.plan.timer.end()
        else:
            output = self.gpipe(numbers.requires_grad_())
        outputs: tuple[Tensor, ...] = output.split(self.plan.output_shape[0])
        return outputs

    def _wait_for_devices(self) -> None:
        """Wait for the other devices' gradients on the first one, whose clock is the step's."""
        first, *others = self.plan.mesh.devices
        for device in others:
            torch.cuda.current_stream(first).wait_stream(torch.cuda.current_stream(device))
