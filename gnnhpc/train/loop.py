"""The training loop: one mini-batch after another, timed between barriers, recorded, observed."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from gnnhpc.batches.batch import Batch, Batches
from gnnhpc.batches.stopwatch import Stopwatch
from gnnhpc.core.errors import GnnhpcError
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.engines import Engine
from gnnhpc.engines.base import StepOutput
from gnnhpc.engines.device_memory import peak_mib, reset_peak
from gnnhpc.engines.stage import Stage
from gnnhpc.engines.system_counters import peak_rss_mib
from gnnhpc.engines.timing import StepTimer, StepTimes
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.models.context import Context
from gnnhpc.models.loose_state import plain_values
from gnnhpc.models.set_buffers import copy_into
from gnnhpc.records.schema import EventRecord, Phase, SpanRecord, StepRecord, final_key
from gnnhpc.tasks.task import Task
from gnnhpc.train.step_observer import BARRIER_VALUES, StepObserver


class NotFiniteError(GnnhpcError):
    """The loss is not a finite number, so no later measurement means anything."""


class Stopped(Exception):  # noqa: N818
    """All ranks agreed to stop after a training step; `step` is the next one to do."""

    def __init__(self, step: int) -> None:
        super().__init__(f"stopped before training step {step}")
        self.step = step


class StepWriter(Protocol):
    """Where the loop writes each step's records."""

    def write(self, *records: StepRecord | SpanRecord | EventRecord) -> None: ...


@dataclass
class Progress:
    """The phase and step that the loop is in, for the report of a failure."""

    phase: Phase = "train"
    step: int = 0


@dataclass
class Trainer:
    """Runs one cell's steps on one rank.

    `stop_requested` says whether a signal told this rank to stop; `after_step(next_step)` may write
    a checkpoint; `report(record)` shows the progress.
    """

    experiment: Experiment
    mesh: Mesh
    stage: Stage
    engine: Engine
    batches: Batches
    task: Task
    optimizer: torch.optim.Optimizer | None
    timer: StepTimer
    writer: StepWriter
    observer: StepObserver
    stop_requested: Callable[[], bool] = lambda: False
    after_step: Callable[[int], None] = lambda next_step: None
    report: Callable[[StepRecord], None] = lambda record: None
    progress: Progress = field(default_factory=Progress)
    final: dict[str, float] = field(default_factory=dict)
    last_outputs: Sequence[Tensor] = ()
    """Of the last test mini-batch, one a micro-batch on the stage of the loss."""
    last_contexts: Sequence[Context] = ()
    """Of its micro-batches."""
    values_before: dict[str, Any] = field(default_factory=dict)
    """Plain attributes of a user's layers, before the last evaluation."""
    test_steps_done: int = 0
    _waited_s: float = 0.0
    """For the present batch."""
    _began_s: float = field(default_factory=time.perf_counter)
    _first_step: dict[Phase, int] = field(default_factory=lambda: {"train": 0, "test": 0})

    def __post_init__(self) -> None:
        self.timer.on_length = self.observer.length_read

    def run(self, start: int = 0) -> None:
        """Train from step `start` to the end, evaluating on the way as the experiment says.

        Raises NotFiniteError for a loss that is not finite, Stopped after a request to stop.
        """
        total = self.experiment.train_steps
        every = self.experiment.test_every or total
        # A process that resumes is as cold as one that begins.
        self._first_step = {"train": start, "test": self.test_steps_done}
        self.stage.train()
        with self.batches.open("train", start, total) as batches:
            for step, batch in zip(range(start, total), self._read(batches), strict=True):
                stop = self._train_step(step, batch)
                done = step + 1
                if done % every == 0 or done == total:
                    self._evaluate()
                if stop and done < total:
                    raise Stopped(done)
                self.after_step(done)

    def _read(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """The same batches; the watchdog learns what this rank does.

        To draw a mini-batch is part of its step, so it is timed from barrier to barrier.
        """
        drawn = self.batches.drawn
        doing = "drawing a mini-batch" if drawn else "reading data"
        while True:
            self.observer.before_reading()
            if drawn:
                self._wait_for_all()
            asked = Stopwatch()
            self._let_draw()
            with self.timer.storage(doing):
                batch = next(batches, None)
            if drawn:
                self._wait_for_all()
            self.batches.stand_still()
            taken = asked.read()
            self._waited_s = taken.seconds
            self.observer.batch_taken(taken)
            if batch is None:
                return
            yield batch

    def _let_draw(self) -> None:
        """In advance, within what is timed of a training step, so never for longer than that."""
        if self.stage.training:
            self.batches.go_on()

    def _wait_for_all(self) -> None:
        with self.timer.storage("wait for mini-batches of other ranks"):
            self._meet()

    def _train_step(self, step: int, batch: Batch) -> bool:
        self.progress.phase, self.progress.step = "train", step
        with self.observer.observing():
            self.observer.before_training_step(step, batch)
        started = self._start_step()
        if self.optimizer is not None:
            with self.timer.span("optimizer"):
                self.optimizer.zero_grad(set_to_none=False)
        trained = self.engine.train_step(batch)
        self.stage.end_minibatch()
        if self.optimizer is not None:
            with self.timer.span("optimizer"):
                self.optimizer.step()
        times = self._stop_step()
        with self.observer.observing():
            self.observer.observe_gradients(batch, self.engine.gradients.norm())
            self.observer.after_training_step(step, batch, trained)
        return self._record_step(step, batch, "train", started, times, trained)

    def _start_step(self) -> float:
        """Prepare, meet the other ranks, start the timer; when, by the host's clock."""
        self.observer.before_step(self.timer.storage_cpu_s)
        reset_peak(self.mesh.devices)
        self.timer.prepare()
        self._meet()
        # Before the timer's own reading: what comes between them must not move its end.
        started = time.perf_counter()
        self.timer.start()
        self.observer.step_began()
        # Processes that are woken may take this processor: within the step by either clock.
        self._let_draw()
        return started

    def _stop_step(self) -> StepTimes:
        """Finish on the device, meet the other ranks, stop the timer."""
        self.timer.clock.synchronize()
        self._meet()
        self.batches.stand_still()
        self.observer.step_ended()
        times = self.timer.stop()
        self.observer.step_stopped()
        return times

    def _meet(self) -> None:
        """All ranks, between two readings of a clock that show whether they have waited."""
        self.observer.comes()
        self.mesh.barrier()
        self.observer.leaves()

    def _evaluate(self) -> None:
        if not self.experiment.test_steps:
            return
        with self.observer.observing():
            # What an evaluation makes of its own weights must not vouch for it.
            self.values_before = copy.deepcopy(plain_values(self.stage))
        self.stage.eval()
        with self.observer.observing():
            self.observer.before_evaluation(self.test_steps_done)
        self._average_running_statistics()
        with self.observer.observing():
            self.observer.after_averaging()
        with self.batches.open("test", 0, self.experiment.test_steps) as batches:
            for batch in self._read(batches):
                step = self.test_steps_done
                self.progress.phase, self.progress.step = "test", step
                with self.observer.observing():
                    self.observer.before_test_step(step, batch)
                started = self._start_step()
                outputs = self.engine.evaluate(batch)
                times = self._stop_step()
                self.last_outputs = outputs
                self.last_contexts = [each.context for each in batch.microbatches]
                with self.observer.observing():
                    self.observer.after_test_step(step, batch, outputs)
                self._record_step(step, batch, "test", started, times, StepOutput(outputs))
                self.test_steps_done += 1
        with self.observer.observing():
            self.observer.after_evaluation()
        self.stage.train()

    def _record_step(
        self,
        step: int,
        batch: Batch,
        phase: Phase,
        started: float,
        times: StepTimes,
        trained: StepOutput,
    ) -> bool:
        """After the last barrier: gather metrics, write the record; true if any rank is to stop."""
        metrics = self._gather_metrics(phase, batch, trained, times)
        loss = metrics.pop("loss")
        stop = bool(metrics.pop("stop"))
        grad_norm = self.observer.grad_norm if phase == "train" else None
        record = StepRecord(
            phase=phase,
            step=step,
            epoch=batch.epoch,
            warmup=step - self._first_step[phase] < self.experiment.warmup_steps,
            start_s=started - self._began_s,
            wall_s=times.wall_s,
            cpu_s=times.cpu_s,
            forward_s=times.total("forward"),
            backward_s=times.total_backward(),
            allreduce_s=times.total("allreduce"),
            optimizer_s=times.total("optimizer"),
            wait_s=times.wall_s - times.busy_s,
            data_s=self._waited_s,
            samples=batch.samples,
            sample_s=batch.loading.sample_s if batch.loading else None,
            gather_s=batch.loading.gather_s if batch.loading else None,
            sampled_edges=batch.loading.edges if batch.loading else None,
            loss=loss if self.mesh.has_loss and math.isfinite(loss) else None,
            metrics=metrics if self.mesh.has_loss else {},
            groups=self._groups(times),
            peak_rss_mib=peak_rss_mib(),
            peak_device_mib=peak_mib(self.mesh.devices),
            involuntary_switches=times.involuntary_switches,
            steal_s=times.steal_s,
            waiting_cpu_s=times.waiting_cpu_s,
            other_cpu_s=times.other_cpu_s,
            run_delay_s=times.run_delay_s,
            threads_used=times.threads_used,
            recompute_s=times.recompute_s,
            grad_norm=grad_norm,
            part_s=self._part_s(times),
            weights_s=times.total("weights") if self.experiment.split_backward else None,
            looked=self.observer.looks,
        )
        self.writer.write(record, *self._spans(phase, step, times))
        with self.observer.observing():
            self.observer.observe_times(record, times)
        if not math.isfinite(loss):
            raise NotFiniteError(f"the {phase} loss of step {step} is {loss}")
        self._keep_last(phase, {"loss": loss, **metrics})
        self.report(record)
        return stop

    def _keep_last(self, phase: Phase, metrics: Mapping[str, float]) -> None:
        """Of the phase's steps before it nothing stays: a replica without a sample has no loss."""
        for name in [n for n in self.final if n.startswith("train_") == (phase == "train")]:
            del self.final[name]
        for name, value in metrics.items():
            self.final[final_key(phase, name)] = value

    def _gather_metrics(
        self, phase: Phase, batch: Batch, trained: StepOutput, times: StepTimes
    ) -> dict[str, float]:
        """Metrics summed over the losses' stages of all replicas; checks what ranks must agree in.

        Also tells `times` when the last replica came to the all-reduce.
        """
        names = self.task.metrics(phase)
        values = torch.zeros(len(names) * 2 + BARRIER_VALUES + 6, dtype=torch.float64)
        if self.mesh.has_loss:
            tally = self.task.tally(phase, trained.outputs, batch)
            with self.observer.observing():
                self.observer.observe_tally(phase, batch, trained.outputs, tally)
            parts = [part for name in names for part in tally[name]]
            values[: 2 * len(names)] = torch.tensor(parts, dtype=torch.float64)
            values[-4] = float(sum(trained.losses)) / self.mesh.layout.replicas
        of_barriers = slice(-6 - BARRIER_VALUES, -6)
        values[of_barriers] = torch.tensor(self.observer.barrier_values(), dtype=torch.float64)
        values[-5] = times.arrival_s or 0.0
        values[-6] = float(self.observer.over_budget)
        values[-3] = float(self.stop_requested())
        values[-2] = float(batch.checksum)
        values[-1] = self.observer.grad_norm or 0.0
        everyone = self.mesh.gather(values)
        with self.observer.observing():
            self.observer.compare_ranks(
                everyone[:, -2].tolist(), everyone[:, -1].tolist() if phase == "train" else None
            )
            self.observer.compare_barriers(everyone[:, of_barriers], phase, self.progress.step)
            self.observer.agree_on_budget(over=bool(everyone[:, -6].max()))
        peers = self.mesh.layout.replica_ranks(self.mesh.stage)
        times.wait_for_replicas(float(everyone[peers, -5].max()))
        sums = everyone[:, : 2 * len(names)].sum(0)
        metrics = {
            name: float(sums[2 * i] / sums[2 * i + 1])
            for i, name in enumerate(names)
            if name == "loss" or sums[2 * i + 1] > 0
        }
        metrics["stop"] = float(everyone[:, -3].max())
        if self.mesh.has_loss and self.mesh.layout.replicas > 1 and values[1] > 0:
            # This replica's own loss; `loss` is the mean over the replicas.
            metrics["replica_loss"] = float(values[0] / values[1])
        if phase == "train":
            self.observer.compare_losses(float(everyone[:, -4].sum()), metrics["loss"])
        return metrics

    def _average_running_statistics(self) -> None:
        """Average BatchNorm's running statistics over replicas, so that all evaluate one model."""
        if self.mesh.replicas is None:
            return
        buffers = [
            buffer
            for name, buffer in self.stage.named_buffers()
            if name.endswith(("running_mean", "running_var"))
        ]
        if not buffers:
            return
        here = [b.flatten().to(self.mesh.device) for b in buffers]
        flat: Tensor = torch.cat(here) / self.mesh.layout.replicas
        self.mesh.sum_over_replicas(flat)
        for buffer, part in zip(buffers, flat.split([b.numel() for b in buffers]), strict=True):
            copy_into(buffer, part.view_as(buffer))

    def _groups(self, times: StepTimes) -> dict[str, list[float]]:
        """None where layers are on several devices, whose clocks are not the step's."""
        if len(self.mesh.devices) > 1:
            return {}
        groups: dict[str, list[float]] = {}
        for layer in self.stage.outlines:
            forward, backward = times.layers.get(layer.name, (0.0, 0.0))
            total = groups.setdefault(layer.group, [0.0, 0.0])
            total[0] += forward
            total[1] += backward
        return {name: [round(s, 9) for s in seconds] for name, seconds in groups.items()}

    def _part_s(self, times: StepTimes) -> list[list[float]] | None:
        """None where the stage is one part, or where all are called as one."""
        if not self.stage.apart:
            return None
        found = []
        for part in range(len(self.stage.parts)):
            seconds = [times.total("forward", part), times.total_backward(part)]
            if self.experiment.split_backward:
                seconds.append(times.total("weights", part))
            found.append([round(each, 9) for each in seconds])
        return found

    def _spans(self, phase: Phase, step: int, times: StepTimes) -> list[SpanRecord]:
        if not self.experiment.spans:
            return []
        return [
            SpanRecord(phase, step, s.name, s.microbatch, s.start_s, s.end_s, s.part)
            for s in times.spans
        ]
