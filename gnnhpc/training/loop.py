"""The training loop: one mini-batch after another, each timed between barriers and recorded."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from gnnhpc.batches.batch import Batch
from gnnhpc.core.errors import GnnhpcError
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.engines.engine import StepOutput
from gnnhpc.engines.gradient_sync import clip_gradients
from gnnhpc.engines.layer_profile import LayerProfile
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.records.schema import Phase
from gnnhpc.training.listeners import Listener, StepTaken
from gnnhpc.training.memory_and_cpu_readings import (
    counted_since,
    machine_readings,
    peak_device_mib,
    reset_peak_device,
)
from gnnhpc.training.setup import TrainingParts
from gnnhpc.training.step_record import gather_metrics, step_record


class NotFiniteError(GnnhpcError):
    """The loss is not a finite number, so no later measurement means anything."""


class Stopped(Exception):  # noqa: N818
    """All ranks agreed to stop after a training step; `step` is the next one to do."""

    def __init__(self, step: int) -> None:
        super().__init__(f"stopped before training step {step}")
        self.step = step


@dataclass
class Position:
    """The phase and step that the loop is in, for the report of a failure."""

    phase: Phase = "train"
    step: int = 0


@dataclass
class TrainingLoop:
    """Runs one cell's steps on one rank.

    `stop_requested` says whether a signal asks this rank to stop; `after_step(next_step)` may write
    a checkpoint; listeners are called outside of timed steps.
    """

    parts: TrainingParts
    listeners: Sequence[Listener] = ()
    stop_requested: Callable[[], bool] = lambda: False
    after_step: Callable[[int], None] = lambda next_step: None
    position: Position = field(default_factory=Position)
    final: dict[Phase, dict[str, float]] = field(default_factory=dict)
    """The metrics of each phase's last step."""
    test_steps_done: int = 0
    _first_step: dict[Phase, int] = field(default_factory=lambda: {"train": 0, "test": 0})

    @property
    def experiment(self) -> Experiment:
        return self.parts.plan.experiment

    @property
    def mesh(self) -> Mesh:
        return self.parts.plan.mesh

    def run(self, start: int = 0) -> None:
        """Train from step `start` to the end, evaluating on the way as the experiment says.

        Raises NotFiniteError for a loss that is not finite, Stopped after a request to stop.
        """
        total = self.experiment.train_steps
        every = self.experiment.test_every or total
        # A process that resumes is as cold as one that begins.
        self._first_step = {"train": start, "test": self.test_steps_done}
        self.parts.stage.train()
        for listener in self.listeners:
            listener.training_begins(start)
        with self.parts.batches.open("train", start, total) as batches:
            for step, (batch, data_s) in zip(range(start, total), self._read(batches), strict=True):
                stop = self._take_step("train", step, batch, data_s)
                done = step + 1
                if done % every == 0 or done == total:
                    self._evaluate()
                if stop and done < total:
                    raise Stopped(done)
                self.after_step(done)
        for listener in self.listeners:
            listener.training_ended(total)

    def _evaluate(self) -> None:
        if not self.experiment.test_steps:
            return
        self.parts.stage.eval()
        average_running_statistics(self.parts.stage, self.mesh)
        for listener in self.listeners:
            listener.evaluation_begins()
        with self.parts.batches.open("test", 0, self.experiment.test_steps) as batches:
            for batch, data_s in self._read(batches):
                self._take_step("test", self.test_steps_done, batch, data_s)
                self.test_steps_done += 1
        for listener in self.listeners:
            listener.evaluation_ended()
        self.parts.stage.train()

    def _read(self, batches: Iterator[Batch]) -> Iterator[tuple[Batch, float]]:
        """The batches, and how many seconds each took to be read.

        Sampling a mini-batch is part of its step, so it is timed from barrier to barrier.
        """
        sampled = not self.parts.batches.fixed_rows
        while True:
            if sampled:
                self.mesh.barrier()
            began_s = time.perf_counter()
            with self.parts.timer.outside("sampling a mini-batch" if sampled else "reading data"):
                batch = next(batches, None)
                if sampled:
                    self.mesh.barrier()
            if batch is None:
                return
            yield batch, time.perf_counter() - began_s

    def _take_step(self, phase: Phase, step: int, batch: Batch, data_s: float) -> bool:
        """Take one step between two barriers, then record it; true if any rank is to stop."""
        self.position.phase, self.position.step = phase, step
        profile = self._profile(phase, step)
        timer = self.parts.timer
        if phase == "train":
            self._set_learning_rate(step)
        if self.experiment.compile == "reduce-overhead":
            # What torch's CUDA graphs gave in the last step may be overwritten from here on.
            torch.compiler.cudagraph_mark_step_begin()
        reset_peak_device(self.mesh.devices)
        with profile or contextlib.nullcontext():
            before = machine_readings()
            self.mesh.barrier()
            start_s = timer.start(profiled=profile is not None)
            if phase == "train":
                output = self._train(batch)
            else:
                output = StepOutput(self.parts.engine.evaluate(batch))
            timer.synchronize()
            self.mesh.barrier()
            times = timer.stop()
            machine = counted_since(before)
        graphs = self.parts.engine.graphs
        peak_mib = peak_device_mib(self.mesh.devices, graphs.kept_bytes if graphs else 0)
        norm = self.parts.engine.gradients.norm() if phase == "train" else None
        stop, task = self.stop_requested(), self.parts.task
        metrics = gather_metrics(self.mesh, task, phase, batch, output, times, stop)
        record = step_record(
            *(self.parts.plan, batch, times, profile, metrics),
            phase=phase,
            step=step,
            warmup=self._warms_up(phase, step),
            peak_device_mib=peak_mib,
            start_s=start_s,
            data_s=data_s,
            grad_norm=norm,
            **machine,
        )
        taken = StepTaken(phase, step, batch, output, record, times.spans or [], metrics)
        for listener in self.listeners:
            listener.step_taken(taken)
        if not math.isfinite(metrics.loss):
            raise NotFiniteError(f"the {phase} loss of step {step} is {metrics.loss}")
        self.final[phase] = {"loss": metrics.loss, **metrics.values}
        return metrics.stop

    def _train(self, batch: Batch) -> StepOutput:
        parts, timer = self.parts, self.parts.timer
        clip_norm = self.experiment.optimizer.clip_norm
        output = parts.engine.train_step(batch)
        if clip_norm is not None:
            timer.begin("optimizer")
            clip_gradients(parts.engine.gradients, self.mesh, clip_norm)
            timer.end()
        if parts.optimizer is not None:
            timer.begin("optimizer")
            parts.optimizer.step()
            timer.end()
        return output

    def _set_learning_rate(self, step: int) -> None:
        config, optimizer = self.experiment.optimizer, self.parts.optimizer
        if config.lr_schedule.name == "constant":
            return
        for group in optimizer.param_groups if optimizer is not None else ():
            group["lr"] = config.lr_at(step, self.experiment.train_steps)

    def _warms_up(self, phase: Phase, step: int) -> bool:
        """Whether the step that was taken is no measurement."""
        graphs = self.parts.engine.graphs
        first = self._first_step[phase] + self.experiment.warmup_steps
        return step < first or (graphs is not None and graphs.warms_up)

    def _profile(self, phase: Phase, step: int) -> LayerProfile | None:
        """The layers' profile of a step that has one; layers on several devices have none."""
        if phase != "train" or len(self.mesh.devices) > 1:
            return None
        first = self._first_step["train"] + self.experiment.warmup_steps
        count = self.experiment.profiled_steps(self._first_step["train"])
        if count and self.parts.engine.graphs is not None:
            # The first of them warms up.
            count += 1
        if not first <= step < first + count:
            return None
        stage = self.parts.stage
        return LayerProfile(stage.specs, stage.layers, self.parts.timer)


@torch.no_grad()
def average_running_statistics(stage: nn.Module, mesh: Mesh) -> None:
    """Average them over the replicas of a stage, so that all evaluate one model; a collective."""
    if mesh.replicas is None:
        return
    buffers = [
        buffer
        for name, buffer in stage.named_buffers()
        if name.endswith(("running_mean", "running_var"))
    ]
    if not buffers:
        return
    statistics = torch.cat([b.flatten().to(mesh.device) for b in buffers])
    flat: Tensor = statistics / mesh.layout.replicas
    mesh.sum_over_replicas(flat)
    for buffer, mean in zip(buffers, flat.split([b.numel() for b in buffers]), strict=True):
        buffer.copy_(mean.view_as(buffer))
