"""What writes a step's records, and what prints the progress of a running cell."""

from __future__ import annotations

import time

from gnnhpc.distributed.mesh import Mesh
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.records.record_writer import RecordWriter
from gnnhpc.records.schema import SpanRecord
from gnnhpc.training.events import Listener, StepTaken

EVERY_S = 5.0
"""Seconds between two lines of progress."""


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


class PrintsProgress(Listener):
    """Prints a line every few seconds on rank 0, with the loss of the last stage.

    The log of another rank says once where they are: in `first_log`, rank 0's.
    """

    def __init__(self, experiment: Experiment, mesh: Mesh, first_log: str) -> None:
        self._total, self._is_first = experiment.train_steps, mesh.rank == 0
        self._last_s = 0.0
        if not self._is_first:
            place = f"stage {mesh.stage}, replica {mesh.replica}"
            print(f"rank {mesh.rank} ({place}): progress and loss are in {first_log}", flush=True)

    def step_taken(self, taken: StepTaken) -> None:
        now_s, trains = time.monotonic(), taken.phase == "train"
        is_due = now_s - self._last_s >= EVERY_S or taken.step == self._total - 1 or not trains
        if not self._is_first or not is_due:
            return
        self._last_s = now_s
        of = f" of {self._total}" if trains else ""
        named = {"loss": f"{taken.metrics.loss:.4f}"} | {
            name: f"{value:.3f}"
            for name, value in taken.metrics.values.items()
            if name != "replica_loss"
        }
        metrics = "".join(f", {name} {value}" for name, value in named.items())
        step = f"{taken.phase} step {taken.step + 1}{of}"
        print(f"{step}: {taken.record.wall_s:.4f} s{metrics}", flush=True)
