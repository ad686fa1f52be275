"""What the training loop reports outside of timed steps, and who listens: records and progress."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gnnhpc.batches.batch import Batch
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.engines.engine import StepOutput
from gnnhpc.engines.step_timer import Span
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.records.rank_record_writer import RecordWriter
from gnnhpc.records.schema import Phase, SpanRecord, StepRecord
from gnnhpc.training.step_record import StepMetrics

EVERY_S = 5.0
"""Seconds between two lines of progress."""


@dataclass(frozen=True)
class StepTaken:
    """A step that has ended on all ranks, and its record."""

    phase: Phase
    step: int
    batch: Batch
    output: StepOutput
    record: StepRecord
    spans: Sequence[Span]
    metrics: StepMetrics
    """Metrics over all ranks; the record has the loss on the ranks that compute it."""


class Listener:
    """A listener of the loop; its methods do nothing, and each kind overrides what it needs."""

    def training_begins(self, start: int) -> None:
        """Called before the first step, which is training step `start`."""

    def step_taken(self, taken: StepTaken) -> None:
        """Called after a training or test step, before its batch is overwritten."""

    def evaluation_begins(self) -> None:
        """Called in evaluation mode, once replicas have averaged their running statistics."""

    def evaluation_ended(self) -> None:
        """Called in evaluation mode, after the last test step."""

    def training_ended(self, step: int) -> None:
        """Called after the last step; `step` is the next one."""


class RecordsSteps(Listener):
    """Writes each step's record, and its spans where the experiment asks for them."""

    def __init__(self, writer: RecordWriter, *, spans: bool) -> None:
        self._writer, self._spans = writer, spans

    def step_taken(self, taken: StepTaken) -> None:
        spans = [
            SpanRecord(
                *(taken.phase, taken.step, each.name, each.microbatch),
                *(each.start_s, each.end_s, each.virtual_stage),
            )
            for each in (taken.spans if self._spans else ())
        ]
        self._writer.write(taken.record, *spans)


def progress_listener(experiment: Experiment, mesh: Mesh, first_log: str) -> Listener:
    """A listener that shows the progress on rank 0, with the loss of the last stage: a bar on a
    terminal, lines in a log.

    The log of another rank says once where they are: in `first_log`, rank 0's.
    """
    if mesh.rank != 0:
        place = f"stage {mesh.stage}, replica {mesh.replica}"
        print(f"rank {mesh.rank} ({place}): progress and loss are in {first_log}", flush=True)
        return Listener()
    return _Bar(experiment) if sys.stderr.isatty() else _Lines(experiment)


class _Bar(Listener):
    def __init__(self, experiment: Experiment) -> None:
        self._total = experiment.train_steps
        self._bar: Any = None

    def training_begins(self, start: int) -> None:
        from rich.console import Console
        from rich.progress import Progress

        self._bar = Progress(console=Console(stderr=True))
        self._task = self._bar.add_task("train", total=self._total, completed=start)
        self._bar.start()

    def step_taken(self, taken: StepTaken) -> None:
        self._bar.update(
            self._task,
            advance=taken.phase == "train",
            description=f"{taken.phase} {taken.record.wall_s:.3f} s a step{_metrics(taken)}",
        )

    def training_ended(self, step: int) -> None:
        self._bar.stop()


class _Lines(Listener):
    def __init__(self, experiment: Experiment) -> None:
        self._total = experiment.train_steps
        self._last_s = 0.0

    def step_taken(self, taken: StepTaken) -> None:
        now_s, trains = time.monotonic(), taken.phase == "train"
        is_due = now_s - self._last_s >= EVERY_S or taken.step == self._total - 1 or not trains
        if not is_due:
            return
        self._last_s = now_s
        of = f" of {self._total}" if trains else ""
        step = f"{taken.phase} step {taken.step + 1}{of}"
        print(f"{step}: {taken.record.wall_s:.4f} s{_metrics(taken)}", flush=True)


def _metrics(taken: StepTaken) -> str:
    named = taken.metrics.values.items()
    others = "".join(f", {name} {value:.3f}" for name, value in named if name != "replica_loss")
    return f", loss {taken.metrics.loss:.4f}{others}"
