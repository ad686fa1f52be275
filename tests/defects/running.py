"""Runs a cell with a defect as a user would, and which mechanism names what its run finds wrong."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tests.defects.plants  # noqa: F401
from analysis.load.run_data import load_run
from gnnhpc.core.errors import InputError
from gnnhpc.core.run_paths import RunPaths
from gnnhpc.experiment.manifest import read_manifest
from gnnhpc.records.schema import FLAGGED, Check
from gnnhpc.validation.record_audit import audit_attempt
from tests.defects.cells import VIG, VIG_SEQ
from tests.defects.defect import DEFECTS, Defect, around
from tests.tools.cells import Ran, manifest_of, run

BUSY = {"noisy", "drift", "oversubscribed", "shared-node", "cut-short"}
"""Flags that a busy machine of few processors earns, and an attempt that failed."""
SAVES_AT, STOPS_AT = 3, 7
"""Of a defect in a resumed attempt: steps between checkpoints, and where the first one ends."""
MECHANISMS = {
    "invariants": (
        *("replica parameters", "evaluation", "continuity", "modes", "generators"),
        *("running statistics", "optimizer", "all-reduce", "no-checkpoint"),
    ),
    "data-digests": ("data", "order"),
    "record-audit": (
        *("records", "same code", "step counts", "step times", "schedule", "barriers"),
        *("between-steps", "threads", "damaged"),
    ),
}
"""The names of the checks of each mechanism that has several; others are named as it is."""


@dataclass(frozen=True)
class Row:
    """A defect, and all flagged checks of its run."""

    defect: Defect
    flagged: Sequence[Check]

    @property
    def named(self) -> Check | None:
        """The check that names the defect as it is to be named."""
        return next((c for c in self._of_mechanism if self.defect.words in c.detail), None)

    @property
    def _of_mechanism(self) -> list[Check]:
        return [check for check in self.flagged if mechanism_of(check) == self.defect.mechanism]

    def __str__(self) -> str:
        best = self.named or next(iter([*self._of_mechanism, *self.flagged]), None)
        if best is None:
            return f"{self.defect.name:<64} PASSES"
        by = f"{'' if self.named else 'OTHERWISE '}{mechanism_of(best)}: {best.verdict}"
        return f"{self.defect.name:<64} {by:<30} {' '.join(best.detail.split())[:160]}"


def mechanism_of(check: Check) -> str:
    return next((name for name, checks in MECHANISMS.items() if check.name in checks), check.name)


def row_of(defect: Defect, folder: Path) -> Row:
    """Plant the defect in an empty folder; all of them are in one folder."""
    if defect.how == "files":
        shutil.copytree(healthy_run(folder.parent / "healthy"), folder)
        defect.plant(folder)
        return Row(defect, list(_in_report(folder)))
    cell = defect.cell.but(save_every=SAVES_AT) if defect.how == "resume" else defect.cell
    experiments = [cell.experiment()]
    if defect.how == "beside":
        experiments.insert(0, cell.experiment(layout="seq"))
    cells = manifest_of(folder, *experiments)
    if defect.how == "beside":
        run(folder, cells[0])
    elif defect.how == "resume":
        run(folder, cells[0], plant=stop_early)
    plant = functools.partial(plant_by_name, defect.name)
    return Row(defect, flagged_in(folder, run(folder, cells[-1], plant=plant)))


def healthy_run(folder: Path) -> Path:
    """Run a sequential cell and two repeats of a pipeline, once, for the defects of files."""
    if not folder.exists():
        cells = (VIG_SEQ.experiment(microbatches=1), VIG.experiment(), VIG.experiment(repeat=1))
        for cell in manifest_of(folder, *cells):
            assert run(folder, cell).result.valid
    return folder


def stop_early() -> None:
    """End the first attempt with an error after it has written checkpoints."""
    from gnnhpc.engines.native import NativeEngine

    def step(original: Any, engine: NativeEngine, batch: Any) -> Any:
        if batch.microbatches[0].context.step == STOPS_AT:
            raise RuntimeError("this attempt is to end at this step")
        return original(engine, batch)

    around(NativeEngine, "train_step", step)


def plant_by_name(name: str) -> None:
    """Ranks are processes of their own, so a plant reaches them by its name."""
    DEFECTS[name].plant()


def flagged_in(folder: Path, ran: Ran) -> Sequence[Check]:
    """The flagged checks of a result; where there are none, those of the report."""
    try:
        result = ran.result
    except (OSError, InputError) as error:
        text = f"ranks ended with {ran.statuses} ({error}): {' '.join(ran.err)[-2000:]}"
        return [Check("failure", "invalid", text)]
    found = [check for check in result.audit if _counts(check)]
    if result.failure is not None:
        found.append(Check("failure", "invalid", result.failure.error))
    return found or list(_in_report(folder))


def _in_report(folder: Path) -> Iterator[Check]:
    """What the report and `gnnhpc check` of a run folder find."""
    try:
        run_data = load_run(folder)
    except InputError as error:
        yield Check("reader", "invalid", str(error))
        return
    rows = run_data.checks[["name", "verdict", "detail"]].to_dict("records")
    yield from filter(_counts, (Check(**row) for row in rows))
    for cell in read_manifest(RunPaths(folder).manifest):
        for attempt in RunPaths(folder).cell(cell.id).attempts():
            yield from filter(_counts, audit_attempt(attempt))


def _counts(check: Check) -> bool:
    return check.verdict in FLAGGED and check.name not in BUSY
