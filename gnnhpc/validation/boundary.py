"""Validation at an attempt's boundaries: what runs when, and what it costs."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Iterator
from pathlib import Path

from gnnhpc.core.errors import GnnhpcError
from gnnhpc.distributed.allocator import give_back_freed_memory
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.records.schema import Check
from gnnhpc.training.events import Listener
from gnnhpc.training.machine_readings import reset_peak_memory
from gnnhpc.training.setup import TrainingParts

OFF = Check(
    "not-validated",
    "inconclusive",
    "check: off: the run was not validated at its start, its end or its checkpoints",
)


class Validation:
    """Runs the mechanisms of one attempt on all its ranks; checks are known to rank 0.

    With `check: off` nothing runs, and one check says so.
    """

    def __init__(
        self, experiment: Experiment, parts: TrainingParts, mesh: Mesh, root: Path | None
    ) -> None:
        self.experiment, self.parts, self.mesh, self.root = experiment, parts, mesh, root
        self.seconds = 0.0
        """What validation took until now on this rank."""
        self.checks: list[Check] = []
        """Those of the start."""
        self._is_on = experiment.check == "boundary"

    @property
    def listeners(self) -> list[Listener]:
        """What follows the run between its boundaries, outside of timed steps."""
        return []

    def at_start(self, start: int) -> None:
        """Before training step `start`, the first; a collective. It resets the peaks of memory."""
        if self._is_on:
            with self._timed("validating the start"):
                pass
        gc.collect()
        give_back_freed_memory()
        reset_peak_memory(self.mesh.devices)

    def at_checkpoint(self, step: int) -> list[Check]:
        """Before a checkpoint is written, from which step `step` goes on; a collective.

        Raises GnnhpcError on all ranks where the run is wrong: an attempt that resumes from the
        checkpoint would go on with it.
        """
        if not self._is_on:
            return [OFF]
        with self._timed("validating a checkpoint"):
            checks: list[Check] = self.mesh.gather_objects(self.checks)[0]
        causes = [f"{each.name}: {each.detail}" for each in checks if each.verdict == "invalid"]
        if causes:
            raise WrongRunError("; ".join(causes))
        return checks

    def at_end(self, step: int) -> list[Check]:
        """After the last step, the one before `step`; a collective."""
        if not self._is_on:
            return [OFF]
        with self._timed("validating the end"):
            return self.checks

    @contextlib.contextmanager
    def _timed(self, doing: str) -> Iterator[None]:
        began_s = time.perf_counter()
        with self.parts.timer.outside(doing):
            yield
        self.seconds += time.perf_counter() - began_s


class WrongRunError(GnnhpcError):
    """The run is wrong, so no checkpoint of it is written."""

    def __init__(self, causes: str) -> None:
        super().__init__(f"no checkpoint is written of a run that is wrong: {causes}")
        self.check = Check("no-checkpoint", "invalid", causes)
