"""Validation at an attempt's boundaries: what runs when, and what it costs."""

from __future__ import annotations

import contextlib
import functools
import gc
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

from gnnhpc.core.errors import GnnhpcError
from gnnhpc.core.run_paths import AttemptPaths
from gnnhpc.distributed.allocator import give_back_freed_memory
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.records.failures import one_line
from gnnhpc.records.result_file import Result
from gnnhpc.records.schema import Check, EventRecord
from gnnhpc.training.listeners import Listener
from gnnhpc.training.memory_and_cpu_readings import reset_peak_rss
from gnnhpc.training.setup import TrainingParts
from gnnhpc.validation.audit.processor_use import ProcessorUse
from gnnhpc.validation.data_digests import check_data
from gnnhpc.validation.engine_parity import check_engine
from gnnhpc.validation.graph_chunks import check_chunks
from gnnhpc.validation.invariants import Invariants
from gnnhpc.validation.kernel_parity import check_kernels
from gnnhpc.validation.record_audit import audit_records
from gnnhpc.validation.steps.parity_slice import parity_slice
from gnnhpc.validation.verdicts import CheckError, WrongRunError, one_a_name, why_failed

OFF = Check(
    "not-validated",
    "inconclusive",
    "check: off: the run was not validated at its start, its end or its checkpoints",
)

EVENTS = [name for name in vars(Listener) if not name.startswith("_")]


class Validation:
    """Runs the mechanisms of one attempt on all its ranks; checks are known to rank 0.

    With `check: off` nothing runs but the record audit, and one check says so.
    """

    def __init__(
        self, experiment: Experiment, parts: TrainingParts, mesh: Mesh, root: Path | None
    ) -> None:
        self.experiment, self.parts, self.mesh, self.root = experiment, parts, mesh, root
        self._is_on = experiment.check == "boundary"
        self._seconds = 0.0
        self._checks: list[Check] = []
        """Checks of the start, on rank 0."""
        self._observer = _Observer(Invariants(experiment, mesh, parts))
        self._processors = ProcessorUse()

    @property
    def seconds(self) -> float:
        """What validation took until now on this rank."""
        return self._seconds + self._observer.seconds

    @property
    def listeners(self) -> list[Listener]:
        """What follows the run between its boundaries, outside of timed steps."""
        return [*([self._observer] if self._is_on else []), self._processors]

    def events(self) -> list[EventRecord]:
        """What a rank records after the last step: its processors, and the cost of validation."""
        return [self._processors.record(), EventRecord("validation", self.seconds)]

    def at_start(self, start: int) -> None:
        """Called before training step `start`, the first; a collective. It resets the peak of the
        host's memory."""
        if self._is_on:
            with self._timed("validating the start"):
                data = self.experiment, self.parts.batches, self.root, self.mesh
                self._checks = [
                    *self._guarded("data", lambda: check_data(*data)),
                    *self._guarded("chunks", lambda: check_chunks(*data)),
                    *self._parities(start, "start"),
                ]
                for check in self._checks if self.mesh.rank == 0 else []:
                    if check.verdict == "invalid":
                        print(f"{self.experiment.id}: {check.name}: {check.detail}", flush=True)
        gc.collect()
        give_back_freed_memory()
        reset_peak_rss()

    def at_checkpoint(self, step: int) -> list[Check]:
        """Checks before a checkpoint is written, from which step `step` resumes; a collective.

        Raises WrongRunError on all ranks where the run is wrong: an attempt that resumes from the
        checkpoint would go on with it.
        """
        if not self._is_on:
            return [OFF]
        with self._timed("validating a checkpoint"):
            when = f"the checkpoint before step {step}"
            self._observer.observe(self._observer.invariants.between_steps, when)
            checks: list[Check] = self.mesh.gather_objects([*self._checks, *self._observed()])[0]
        causes = [f"{each.name}: {each.detail}" for each in checks if each.verdict == "invalid"]
        if causes:
            wrong = Check("no-checkpoint", "invalid", "; ".join(causes))
            raise WrongRunError("no checkpoint is written of a run that is wrong", wrong)
        return checks

    def at_end(self, step: int) -> list[Check]:
        """Called after the last step, the one before `step`; a collective."""
        if not self._is_on:
            return [OFF]
        with self._timed("validating the end"):
            observed = self._observed()
            checks = [*self._checks, *self._parities(step, "end"), *observed]
        return one_a_name(checks)

    def audit(self, paths: AttemptPaths, result: Result) -> list[Check]:
        """What the attempt's files show; on rank 0."""
        try:
            return audit_records(paths, result)
        # Only rank 0 audits.
        except Exception as error:
            return [Check("record-audit", "inconclusive", why_failed(error))]

    def _parities(self, step: int, when: Literal["start", "end"]) -> list[Check]:
        """The engine in float64 and the kernels at their real shape, as the run is now."""
        run, root = (self.experiment, self.parts, self.mesh), self.root
        return [
            *self._guarded(
                "engine-parity",
                lambda: check_engine(*run, root, parity_slice(self.experiment, first=step)),
            ),
            *self._guarded("kernel-parity", lambda: check_kernels(*run, when=when)),
        ]

    def _observed(self) -> list[Check]:
        """What the invariants of all ranks found; nothing of them where one failed on a rank."""
        failed = [why for why in self.mesh.gather_objects(self._observer.failed) if why]
        if failed:
            return [Check("invariants", "inconclusive", failed[0])]
        return self._observer.invariants.checks()

    def _guarded(self, name: str, check: Callable[[], list[Check]]) -> list[Check]:
        """A check's findings, or why the check itself failed.

        Raises WrongRunError for an error while other ranks wait for this one.
        """
        try:
            return check()
        except CheckError as error:
            return [Check(name, "inconclusive", str(error))]
        except GnnhpcError:
            raise
        except Exception as error:
            if self.mesh.layout.world_size > 1:
                failed = Check(name, "invalid", one_line(error))
                raise WrongRunError(f"{name} failed between ranks", failed) from error
            return [Check(name, "inconclusive", why_failed(error))]

    @contextlib.contextmanager
    def _timed(self, doing: str) -> Iterator[None]:
        began_s = time.perf_counter()
        with self.parts.timer.outside(doing):
            yield
            self.mesh.barrier()
        self._seconds += time.perf_counter() - began_s


class _Observer(Listener):
    """Times the invariants, and keeps the first error in them; then they are not called again."""

    def __init__(self, invariants: Invariants) -> None:
        self.invariants = invariants
        self.seconds = 0.0
        self.failed = ""
        for event in EVENTS:
            setattr(self, event, functools.partial(self.observe, getattr(invariants, event)))

    def observe(self, event: Callable[..., None], *arguments: Any) -> None:
        began_s = time.perf_counter()
        if not self.failed:
            try:
                event(*arguments)
            # The run goes on without this check.
            except Exception as error:
                self.failed = why_failed(error)
        self.seconds += time.perf_counter() - began_s
