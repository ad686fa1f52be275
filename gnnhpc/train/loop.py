"""The loop: mini-batch after mini-batch, barrier to barrier, each one recorded and looked at."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from gnnhpc.batches.batch import Batch, Batches
from gnnhpc.core.errors import GnnhpcError
from gnnhpc.engines import Engine
from gnnhpc.engines.base import Trained
from gnnhpc.engines.stage import Stage
from gnnhpc.engines.timing import StepTimer, StepTimes, peak_rss_mib
from gnnhpc.ranks.mesh import Mesh
from gnnhpc.records.schema import Phase, SpanRecord, StepRecord
from gnnhpc.records.writer import Recorder
from gnnhpc.spec.experiment import Experiment
from gnnhpc.tasks.task import Task
from gnnhpc.train.observer import StepObserver


class NotFiniteError(GnnhpcError):
    """The loss is no number any more; nothing measured after it would mean anything."""


class Stopped(Exception):  # noqa: N818
    """All ranks agreed to stop after a training step; `step` is the next one to do."""

    def __init__(self, step: int) -> None:
        super().__init__(f"stopped before training step {step}")
        self.step = step


@dataclass
class Progress:
    """Where the loop stands, for whoever has to tell: failures, the log, the watchdog."""

    phase: Phase = "train"
    step: int = 0
    beats: int = 0


@dataclass
class Trainer:
    """Runs one cell's steps on one rank.

    `stop_asked` says whether this rank was told to stop; `after_step(next_step)` may checkpoint;
    `report(line)` tells a person.
    """

    experiment: Experiment
    mesh: Mesh
    stage: Stage
    engine: Engine
    batches: Batches
    task: Task
    optimizer: torch.optim.Optimizer | None
    timer: StepTimer
    recorder: Recorder
    observer: StepObserver
    stop_asked: Callable[[], bool] = lambda: False
    after_step: Callable[[int], None] = lambda next_step: None
    report: Callable[[StepRecord], None] = lambda record: None
    progress: Progress = field(default_factory=Progress)
    final: dict[str, float] = field(default_factory=dict)
    tested: int = 0
    _origin_s: float = field(default_factory=time.perf_counter)

    def run(self, start: int = 0) -> None:
        """Train from step `start` to the end, evaluating on the way as the experiment says.

        Raises NotFiniteError for a loss that is no number, Stopped when asked to stop.
        """
        total = self.experiment.train_steps
        every = self.experiment.test_every or total
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
        """The same batches; whoever watches is told that files are being waited for."""
        while True:
            with self.timer.storage("reading data"):
                batch = next(batches, None)
            if batch is None:
                return
            yield batch

    def _train_step(self, step: int, batch: Batch) -> bool:
        self.progress.phase, self.progress.step = "train", step
        mesh, timer = self.mesh, self.timer
        mesh.barrier()
        timer.start()
        started = time.perf_counter()
        if self.optimizer is not None:
            with timer.span("optimizer"):
                self.optimizer.zero_grad(set_to_none=False)
        trained = self.engine.train_step(batch)
        self.stage.end_minibatch()
        if self.optimizer is not None:
            with timer.span("optimizer"):
                self.optimizer.step()
        timer.clock.synchronize()
        mesh.barrier()
        times = timer.stop()
        with self.observer.looking():
            self.observer.saw(batch, self.engine.gradients.norm())
        return self._close(step, batch, "train", started, times, trained)

    def _evaluate(self) -> None:
        if not self.experiment.test_steps:
            return
        self.stage.eval()
        self._share_running_statistics()
        with self.batches.open("test", 0, self.experiment.test_steps) as batches:
            for batch in self._read(batches):
                step = self.tested
                self.progress.phase, self.progress.step = "test", step
                self.mesh.barrier()
                self.timer.start()
                started = time.perf_counter()
                outputs = self.engine.evaluate(batch)
                self.timer.clock.synchronize()
                self.mesh.barrier()
                times = self.timer.stop()
                self._close(step, batch, "test", started, times, Trained(outputs))
                self.tested += 1
        self.stage.train()

    def _close(
        self,
        step: int,
        batch: Batch,
        phase: Phase,
        started: float,
        times: StepTimes,
        trained: Trained,
    ) -> bool:
        """After the last barrier: exchange what was seen, write the record, say whether to stop."""
        metrics = self._exchange(phase, batch, trained)
        loss = metrics.pop("loss")
        stop = bool(metrics.pop("stop"))
        grad_norm = self.observer.grad_norm if phase == "train" else None
        record = StepRecord(
            phase=phase,
            step=step,
            epoch=batch.epoch,
            warmup=step < self.experiment.warmup_steps,
            start_s=started - self._origin_s,
            wall_s=times.wall_s,
            cpu_s=times.cpu_s,
            forward_s=times.total("forward"),
            backward_s=times.total("backward"),
            allreduce_s=times.total("allreduce"),
            optimizer_s=times.total("optimizer"),
            wait_s=max(0.0, times.wall_s - times.busy_s),
            data_s=batch.waited_s,
            samples=batch.samples,
            loss=loss if self.mesh.is_last and math.isfinite(loss) else None,
            metrics=metrics if self.mesh.is_last else {},
            groups=self._groups(times),
            peak_rss_mib=peak_rss_mib(),
            peak_device_mib=self._peak_device_mib(),
            involuntary_switches=times.involuntary_switches,
            steal_s=times.steal_s,
            grad_norm=grad_norm,
        )
        self.recorder.write(record, *self._spans(phase, step, times))
        with self.observer.looking():
            self.observer.timed(record, times)
        self.progress.beats += 1
        if not math.isfinite(loss):
            raise NotFiniteError(f"the {phase} loss of step {step} is {loss}")
        self.final[f"{phase}_loss"] = loss
        for name, value in metrics.items():
            self.final[name if name.startswith(("val_", "test_")) else f"{phase}_{name}"] = value
        self.report(record)
        return stop

    def _exchange(self, phase: Phase, batch: Batch, trained: Trained) -> dict[str, float]:
        """Add up over replicas what the last stages know, and compare what should be equal."""
        names = self.task.metrics(phase)
        values = torch.zeros(len(names) * 2 + 4, dtype=torch.float64)
        if self.mesh.is_last:
            tally = self.task.tally(phase, trained.outputs, batch)
            parts = [part for name in names for part in tally[name]]
            values[: 2 * len(names)] = torch.tensor(parts, dtype=torch.float64)
            values[-4] = float(sum(trained.losses)) / self.mesh.layout.replicas
        values[-3] = float(self.stop_asked())
        values[-2] = float(batch.checksum)
        values[-1] = self.observer.grad_norm or 0.0
        everyone = self.mesh.gather(values)
        with self.observer.looking():
            self.observer.compare(
                everyone[:, -2].tolist(), everyone[:, -1].tolist() if phase == "train" else None
            )
        sums = everyone[:, : 2 * len(names)].sum(0)
        metrics = {
            name: float(sums[2 * i] / sums[2 * i + 1])
            for i, name in enumerate(names)
            if name == "loss" or sums[2 * i + 1] > 0
        }
        metrics["stop"] = float(everyone[:, -3].max())
        if self.mesh.is_last and self.mesh.layout.replicas > 1 and values[1] > 0:
            # Its own copy's, for whoever draws the copies apart; the mean over replicas is `loss`.
            metrics["replica_loss"] = float(values[0] / values[1])
        if phase == "train":
            self.observer.trained(float(everyone[:, -4].sum()), metrics["loss"])
        return metrics

    def _share_running_statistics(self) -> None:
        """Average BatchNorm's running statistics over replicas, so that all evaluate one model."""
        group = self.mesh.replicas
        if group is None:
            return
        buffers = [
            buffer
            for name, buffer in self.stage.named_buffers()
            if name.endswith(("running_mean", "running_var"))
        ]
        if not buffers:
            return
        flat: Tensor = torch.cat([b.flatten() for b in buffers]) / self.mesh.layout.replicas
        dist.all_reduce(flat, group=group)
        for buffer, part in zip(buffers, flat.split([b.numel() for b in buffers]), strict=True):
            buffer.copy_(part.view_as(buffer))

    def _groups(self, times: StepTimes) -> dict[str, list[float]]:
        groups: dict[str, list[float]] = {}
        for layer in self.stage.outlines:
            forward, backward = times.layers.get(layer.name, (0.0, 0.0))
            total = groups.setdefault(layer.group, [0.0, 0.0])
            total[0] += forward
            total[1] += backward
        return {name: [round(s, 9) for s in seconds] for name, seconds in groups.items()}

    def _spans(self, phase: Phase, step: int, times: StepTimes) -> list[SpanRecord]:
        if not self.experiment.spans:
            return []
        return [
            SpanRecord(phase, step, s.name, s.microbatch, s.start_s, s.end_s) for s in times.spans
        ]

    def _peak_device_mib(self) -> float | None:
        if self.mesh.device.type != "cuda":
            return None
        return torch.cuda.max_memory_allocated(self.mesh.device) / 2**20
