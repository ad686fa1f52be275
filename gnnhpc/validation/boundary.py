"""Validation at an attempt's boundaries: what runs when, and what it costs."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

from gnnhpc.batches.chunk_batches import ChunkBatches
from gnnhpc.core.run_paths import AttemptPaths
from gnnhpc.distributed.allocator import give_back_freed_memory
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.records.result_file import Result
from gnnhpc.records.schema import Check, EventRecord
from gnnhpc.training.events import Listener, WrongRunError
from gnnhpc.training.machine_readings import reset_peak_memory
from gnnhpc.training.setup import TrainingParts
from gnnhpc.validation.data_digests import check_data
from gnnhpc.validation.engine_parity import check_engine
from gnnhpc.validation.graph_chunks import check_chunks
from gnnhpc.validation.invariants import Invariants
from gnnhpc.validation.kernel_parity import check_kernels
from gnnhpc.validation.processor_use import ProcessorUse
from gnnhpc.validation.record_audit import audit_records
from gnnhpc.validation.sample_order import SampleOrder

OFF = Check(
    "not-validated",
    "inconclusive",
    "check: off: the run was not validated at its start, its end or its checkpoints",
)


class Validation:
    """Runs the mechanisms of one attempt on all its ranks; checks are known to rank 0.

    With `check: off` nothing runs but the record audit, and one check says so.
    """

    def __init__(
        self, experiment: Experiment, parts: TrainingParts, mesh: Mesh, root: Path | None
    ) -> None:
        self.experiment, self.parts, self.mesh, self.root = experiment, parts, mesh, root
        self.seconds = 0.0
        """What validation took until now on this rank."""
        self._is_on = experiment.check == "boundary"
        self._checks: list[Check] = []
        """Those of the start, on rank 0."""
        self._invariants = Invariants(experiment, mesh, parts)
        self._order = SampleOrder(experiment, mesh, parts.batches)
        self._processors = ProcessorUse(parts.batches)

    @property
    def listeners(self) -> list[Listener]:
        """What follows the run between its boundaries, outside of timed steps."""
        if not self._is_on:
            return [self._processors]
        return [self._invariants, self._order, self._processors]

    def events(self) -> list[EventRecord]:
        """What a rank records after the last step: its processors, and the cost of validation."""
        return [self._processors.record(), EventRecord("validation", self.seconds)]

    def at_start(self, start: int) -> None:
        """Before training step `start`, the first; a collective. It resets the peaks of memory."""
        if self._is_on:
            with self._timed("validating the start"):
                batches = self.parts.batches
                self._checks += [check_data(self.experiment, batches, self.root, self.mesh)]
                if isinstance(batches, ChunkBatches):
                    self._checks += [check_chunks(self.experiment, batches, self.root, self.mesh)]
                self._checks += self._parities(start, "start")
                self._print_causes(self._checks)
        gc.collect()
        give_back_freed_memory()
        reset_peak_memory(self.mesh.devices)

    def at_checkpoint(self, step: int) -> list[Check]:
        """Before a checkpoint is written, from which step `step` goes on; a collective.

        Raises WrongRunError on all ranks where the run is wrong: an attempt that resumes from the
        checkpoint would go on with it.
        """
        if not self._is_on:
            return [OFF]
        with self._timed("validating a checkpoint"):
            found = [*self._checks, *self._order.checks(), *self._invariants.checks()]
            checks: list[Check] = self.mesh.gather_objects(found)[0]
        causes = [f"{each.name}: {each.detail}" for each in checks if each.verdict == "invalid"]
        if causes:
            raise WrongRunError("; ".join(causes))
        return checks

    def at_end(self, step: int) -> list[Check]:
        """After the last step, the one before `step`; a collective."""
        if not self._is_on:
            return [OFF]
        with self._timed("validating the end"):
            followed = [*self._order.checks(), *self._invariants.checks()]
            checks = [*self._checks, *self._parities(step, "end"), *followed]
        return _one_a_name(checks)

    def audit(self, paths: AttemptPaths, result: Result) -> list[Check]:
        """What the attempt's files show; on rank 0."""
        return audit_records(paths, result)

    def _parities(self, step: int, when: Literal["start", "end"]) -> list[Check]:
        """The engine in float64 and the kernels at their real shape, as the run is now."""
        engine = check_engine(self.experiment, self.parts, self.mesh, self.root, first=step)
        kernels = check_kernels(self.experiment, self.parts, self.mesh, when=when)
        return [*([] if engine is None else [engine]), *kernels]

    def _print_causes(self, checks: list[Check]) -> None:
        for check in checks if self.mesh.rank == 0 else []:
            if check.verdict == "invalid":
                print(f"{self.experiment.id}: {check.name}: {check.detail}", flush=True)

    @contextlib.contextmanager
    def _timed(self, doing: str) -> Iterator[None]:
        began_s = time.perf_counter()
        with self.parts.timer.outside(doing):
            yield
            self.mesh.barrier()
        self.seconds += time.perf_counter() - began_s


_ORDER = ("invalid", "inconclusive", "suspect", "unknown", "ok")


def _one_a_name(checks: list[Check]) -> list[Check]:
    """Of checks that ran at the start and at the end the graver one, and the costs of both."""
    kept: dict[str, Check] = {}
    for check in checks:
        before = kept.get(check.name)
        if before is None:
            kept[check.name] = check
            continue
        graver = min(before, check, key=lambda each: _ORDER.index(each.verdict))
        seconds = [each.values.get("seconds", 0.0) for each in (before, check)]
        kept[check.name] = replace(graver, values=graver.values | {"seconds": sum(seconds)})
    return list(kept.values())
