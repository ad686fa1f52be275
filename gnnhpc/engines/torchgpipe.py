"""The engine on torchgpipe's GPipe: one process holds all stages of a replica, on its devices.

On a CPU the partitions share torchgpipe's one worker: chunks without speed.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torchgpipe import GPipe

from gnnhpc.batches.batch import Batch
from gnnhpc.engines.base import StagePlan, StepOutput
from gnnhpc.engines.flat_gradients import Gradients
from gnnhpc.engines.torchgpipe_partition import BackwardTurns, Partition, PresentStep


class TorchgpipeEngine:
    """torchgpipe's own schedule and checkpointing over partitions of this process's stage.

    Its `deferred_batch_norm` is not used: it knows torch's BatchNorm alone, not what our fused
    layers tell ours, and its running variance is the biased one, which the self-check refuses.
    """

    def __init__(self, plan: StagePlan) -> None:
        self.plan = plan
        several = len(set(plan.mesh.devices)) > 1
        self.present = PresentStep(plan.timer, BackwardTurns(plan.timer), several)
        parts = plan.stage.cut_into(plan.cut, timed=not several)
        plan.timer.tells_recomputed = not several
        # Partitions on one CPU share a worker, as those of one GPU do.
        devices = list(plan.mesh.devices) * (len(parts) if len(plan.mesh.devices) == 1 else 1)
        self._partitions = [
            Partition(part, device, self.present, is_last=part is parts[-1])
            for part, device in zip(parts, devices, strict=True)
        ]
        self.gpipe = GPipe(
            nn.Sequential(*self._partitions),
            balance=[1] * len(parts),
            devices=devices,
            chunks=plan.microbatches,
            checkpoint=plan.checkpoint,
        )
        # After GPipe has moved the layers: gradients lie beside their parameters.
        self.gradients = Gradients(plan.stage, plan.mesh, plan.timer)
        # torchgpipe begins a thread for each device in every forward, and ends it there.
        plan.timer.threads.come_and_go = True

    @property
    def partitions(self) -> list[list[str]]:
        """The layers of each of GPipe's partitions."""
        return [
            [
                layer.name
                for module in partition.children()
                if isinstance(module, Partition)
                for layer in module.part.outlines
            ]
            for partition in self.gpipe.partitions
        ]

    def train_step(self, batch: Batch) -> StepOutput:
        plan, timer = self.plan, self.plan.timer
        plan.check(batch)
        outputs = self._forward(batch, training=True)
        losses = []
        for m, (output, microbatch) in enumerate(zip(outputs, batch.microbatches, strict=True)):
            with timer.span("forward", m):
                losses.append(plan.loss(output, microbatch, batch.labelled))
        self._backward(losses)
        self.gradients.average()
        self.present.check_order()
        return StepOutput([x.detach() for x in outputs], [loss.detach() for loss in losses])

    def evaluate(self, batch: Batch) -> Sequence[Tensor]:
        self.plan.check(batch)
        with torch.no_grad():
            outputs = self._forward(batch, training=False)
        self.present.check_order()
        return outputs

    def _forward(self, batch: Batch, *, training: bool) -> tuple[Tensor, ...]:
        """Each micro-batch's output, on the first device, where its targets are."""
        first = self.plan.mesh.device
        self.present.batch = batch
        for partition in self._partitions:
            partition.begin_step()
        # Not `train()`: the modes of the layers are the loop's to set.
        self.gpipe.training = training
        numbers = torch.arange(self.plan.microbatches, dtype=torch.float32, device=first)
        if self.present.several_devices:
            with self.plan.timer.span("forward"):
                output: Tensor = self.gpipe(numbers.requires_grad_()).to(first)
        else:
            output = self.gpipe(numbers.requires_grad_())
        outputs: tuple[Tensor, ...] = output.split(self.plan.output_shape[0])
        return outputs

    def _backward(self, losses: Sequence[Tensor]) -> None:
        """One backward of all: torchgpipe has tied the micro-batches' graphs in its order."""
        timer = self.plan.timer
        if self.present.several_devices:
            with timer.span("backward"):
                torch.autograd.backward(losses)
                self._wait_for_devices()
            return
        self.present.turns.take(len(losses) - 1)
        torch.autograd.backward(losses)
        timer.layer_backward(None, timer.clock.mark())
        self.present.turns.end()

    def _wait_for_devices(self) -> None:
        """On the first device, whose clock is the step's, for the others' gradients."""
        first, *others = self.plan.mesh.devices
        for device in others:
            torch.cuda.current_stream(first).wait_stream(torch.cuda.current_stream(device))
