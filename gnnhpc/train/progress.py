"""Shows the progress of a running cell: a bar on a terminal, plain lines in a log."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from gnnhpc.experiment.experiment import Experiment
from gnnhpc.records.schema import StepRecord

EVERY_S = 5.0


@contextlib.contextmanager
def progress_reporter(
    experiment: Experiment, rank: int, start: int = 0
) -> Iterator[Callable[[StepRecord], None]]:
    """A function to call after each step; only rank 0 prints anything."""
    if rank != 0:
        yield lambda record: None
        return
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(stderr=True)) as bar:
            task = bar.add_task("train", total=experiment.train_steps, completed=start)

            def advance(record: StepRecord) -> None:
                bar.update(
                    task,
                    advance=record.phase == "train",
                    description=f"{record.phase} {record.wall_s:.3f} s a step{_loss(record)}",
                )

            yield advance
        return
    last = 0.0

    def line(record: StepRecord) -> None:
        nonlocal last
        now = time.monotonic()
        final = record.phase == "train" and record.step == experiment.train_steps - 1
        if record.phase == "train" and now - last < EVERY_S and not final:
            return
        last = now
        of = f" of {experiment.train_steps}" if record.phase == "train" else ""
        print(
            f"{record.phase} step {record.step + 1}{of}: {record.wall_s:.4f} s{_loss(record)}",
            flush=True,
        )

    yield line


def _loss(record: StepRecord) -> str:
    metrics = "".join(f", {name} {value:.3f}" for name, value in record.metrics.items())
    return (f", loss {record.loss:.4f}" if record.loss is not None else "") + metrics
