"""Prints the progress of a running cell, a line every few seconds."""

from __future__ import annotations

import time

from gnnhpc.distributed.mesh import Mesh
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.training.events import Listener, StepTaken

EVERY_S = 5.0


def progress_listener(experiment: Experiment, mesh: Mesh, first_log: str) -> Listener:
    """A listener that shows the progress on rank 0, the loss of the last stage with it.

    The log of another rank says that it is there: in `first_log`, rank 0's.
    """
    if mesh.rank != 0:
        place = f"stage {mesh.stage}, replica {mesh.replica}"
        print(f"rank {mesh.rank} ({place}): progress and loss are in {first_log}", flush=True)
        return Listener()
    return _Lines(experiment)


class _Lines(Listener):
    def __init__(self, experiment: Experiment) -> None:
        self._total = experiment.train_steps
        self._last_s = 0.0

    def step_taken(self, taken: StepTaken) -> None:
        now_s, trains = time.monotonic(), taken.phase == "train"
        is_last = taken.step == self._total - 1
        if trains and now_s - self._last_s < EVERY_S and not is_last:
            return
        self._last_s = now_s
        of = f" of {self._total}" if trains else ""
        step = f"{taken.phase} step {taken.step + 1}{of}"
        print(f"{step}: {taken.record.wall_s:.4f} s{_metrics(taken)}", flush=True)


def _metrics(taken: StepTaken) -> str:
    named = taken.metrics.values.items()
    others = "".join(f", {name} {value:.3f}" for name, value in named if name != "replica_loss")
    return f", loss {taken.metrics.loss:.4f}{others}"
