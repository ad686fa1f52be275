"""Checks of what an attempt's last step left behind: the planned one, or that before a signal."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gnnhpc.check.check_slice import CheckSlice, last_slices
from gnnhpc.check.final_check import final_check, training_check
from gnnhpc.check.observations import gather_observations
from gnnhpc.check.observer import RunObserver
from gnnhpc.check.self_check import SelfCheck
from gnnhpc.check.slope.passes import a_step_more
from gnnhpc.check.slope.slope_check import slope_check
from gnnhpc.distributed.environment import Environment
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.distributed.requeue import BEFORE_TIME_LIMIT
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.records.reported import read_reported
from gnnhpc.records.schema import Check
from gnnhpc.records.writer import RecordWriter
from gnnhpc.run.results import Finished
from gnnhpc.train.loop import Trainer
from gnnhpc.train.setup import TrainingParts

AFTER_TERM_S = 5.0
"""Of the grace after TERM, what these checks may take."""


@dataclass(frozen=True)
class LookBack:
    """Of one attempt, by all its ranks."""

    experiment: Experiment
    environment: Environment
    mesh: Mesh
    parts: TrainingParts
    trainer: Trainer
    observer: RunObserver
    writer: RecordWriter
    root: Path | None
    """Where data lie."""
    first_check: SelfCheck
    """Before its first step."""
    self_check: Callable[[CheckSlice], SelfCheck]

    def seconds_left(self, received: str | None) -> float | None:
        """For these checks once a signal stops the attempt, None where they would need more; a
        collective.

        They take about as long as three self-checks and ten steps. Ahead of a time limit there are
        as many seconds as the script says, after TERM fewer than its grace.
        """
        needed = 3 * self.first_check.seconds + 10 * self.observer.step_times.longest_s
        ahead = self.environment.signal_s
        allowed = AFTER_TERM_S
        if received is None:
            # Another rank knows what time there is.
            allowed = math.inf
        elif received in BEFORE_TIME_LIMIT and ahead is not None:
            allowed = ahead / 2
        everyone = self.mesh.gather_objects((needed, allowed))
        most, least = max(each[0] for each in everyone), min(each[1] for each in everyone)
        return least if self.observer.train_steps > 0 and most <= least else None

    def before(self, stop: int, within_s: float | None = None) -> Finished:
        """Of training up to before step `stop`, in about `within_s` if given; a collective."""
        mesh, parts, observer = self.mesh, self.parts, self.observer
        # As if it had been planned to end here: the steps of these checks come after its last.
        experiment = self.experiment.model_copy(update={"train_steps": stop})
        trained = observer.train_steps > 0
        # An evaluation in mid-run is of other parameters.
        final = self._final() if trained and stop == self.experiment.train_steps else None
        observations = gather_observations(
            mesh, parts, observer, self.environment, experiment.bucket_mib
        )
        after = last_slices(experiment) if trained else []
        last_checks = [self.self_check(part) for part in after]
        more = self._a_step_more(experiment, within_s) if trained else []
        files = mesh.gather_objects(self.writer.written)
        with parts.timer.storage("reading the records"):
            steps = mesh.gather_objects(read_reported(self.writer.path) if mesh.has_loss else [])
            differing = mesh.gather_objects(observer.records.differing(self.writer.path))
        return Finished(
            *(observations, files, steps, differing),
            *([self.first_check, *last_checks], self.first_check.dead),
            [*([] if final is None else [final]), *more],
        )

    def _final(self) -> Check | None:
        """Of the last evaluation's outputs."""
        if not self.experiment.test_steps:
            return None
        trainer, watch = self.trainer, self.observer.watch
        return final_check(
            *(self.experiment, self.parts, self.mesh, self.root),
            *(trainer.last_contexts, trainer.last_outputs, trainer.values_before),
            watch.layers.kept if watch is not None else [],
        )

    def _a_step_more(self, experiment: Experiment, within_s: float | None) -> list[Check]:
        """What of full size the run's stages compute from what they hold after the last step."""
        mesh, parts = self.mesh, self.parts
        with a_step_more(experiment, parts, mesh) as passes:
            first = passes.take()
            contexts = [each.context for each in passes.batch.microbatches]
            forward = training_check(experiment, parts, mesh, self.root, contexts, first.outputs)
            times = self.observer.step_times
            step_s = times.step_s or [times.longest_s]
            within_s = None if within_s is None else within_s / 3
            slope = slope_check(experiment, passes, first, step_s, within_s)
        return [check for check in (forward, slope) if check is not None]
