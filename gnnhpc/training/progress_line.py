"""Shows the progress of a running cell: a bar on a terminal, plain lines in a log."""

from __future__ import annotations

import sys
import time
from typing import Any

from gnnhpc.experiment.experiment import Experiment
from gnnhpc.records.schema import StepRecord
from gnnhpc.training.events import Listener, StepTaken

EVERY_S = 5.0


def progress_listener(experiment: Experiment, rank: int) -> Listener:
    """A listener that shows the progress on rank 0; other ranks print nothing."""
    if rank != 0:
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
        record = taken.record
        self._bar.update(
            self._task,
            advance=record.phase == "train",
            description=f"{record.phase} {record.wall_s:.3f} s a step{_loss(record)}",
        )

    def training_ended(self, step: int) -> None:
        self._bar.stop()


class _Lines(Listener):
    def __init__(self, experiment: Experiment) -> None:
        self._total = experiment.train_steps
        self._last_s = 0.0

    def step_taken(self, taken: StepTaken) -> None:
        record, now_s = taken.record, time.monotonic()
        trains = record.phase == "train"
        is_last = record.step == self._total - 1
        if trains and now_s - self._last_s < EVERY_S and not is_last:
            return
        self._last_s = now_s
        of = f" of {self._total}" if trains else ""
        print(
            f"{record.phase} step {record.step + 1}{of}: {record.wall_s:.4f} s{_loss(record)}",
            flush=True,
        )


def _loss(record: StepRecord) -> str:
    metrics = "".join(f", {name} {value:.3f}" for name, value in record.metrics.items())
    return (f", loss {record.loss:.4f}" if record.loss is not None else "") + metrics
