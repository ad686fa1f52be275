"""Runs a cell with a defect as a user would, and collects what its result and report find wrong."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.load.run_data import load_run
from gnnhpc.core.errors import InputError
from gnnhpc.core.run_paths import RunPaths
from gnnhpc.experiment.manifest import read_manifest
from gnnhpc.records.result_file import Result
from gnnhpc.records.schema import FLAGGED
from gnnhpc.validation.record_audit import audit_attempt
from tests.defects.cells import VIG, VIG_SEQ
from tests.defects.defect import DEFECTS, Cell, Defect, around
from tests.tools.cells import Ran, manifest_of, run

BUSY = {"noisy", "drift", "oversubscribed", "shared-node", "cut-short"}
"""Flags that a busy machine of few processors earns, and an attempt that failed."""
SAVES_AT, STOPS_AT = 3, 7
"""Of a defect in a resumed attempt: steps between checkpoints, and where the first one ends."""


@dataclass(frozen=True)
class Finding:
    """One thing that was found wrong: the check that names it or `failure`, and its words."""

    check: str
    verdict: str
    words: str


def findings(defect: Defect, folder: Path, healthy: Path) -> Sequence[Finding]:
    """Plant the defect in an empty folder; `healthy` is a run folder from `run_healthy`."""
    if defect.how == "files":
        shutil.copytree(healthy, folder)
        defect.plant(folder)
        return list(_in_report(folder))
    plant = functools.partial(plant_by_name, defect.name)
    if defect.how == "resume":
        cell = defect.cell.but(save_every=SAVES_AT)
        (one,) = manifest_of(folder, cell.experiment())
        _run(folder, one, cell, stop_early)
        return _found(folder, _run(folder, one, cell, plant))
    if defect.how == "beside":
        equivalent = defect.cell.experiment(layout="seq")
        first, one = manifest_of(folder, equivalent, defect.cell.experiment())
        _run(folder, first, defect.cell, None)
    else:
        (one,) = manifest_of(folder, defect.cell.experiment())
    return _found(folder, _run(folder, one, defect.cell, plant))


def without_defect(cell: Cell, folder: Path) -> Sequence[Finding]:
    """The findings of a healthy run of a cell."""
    (one,) = manifest_of(folder, cell.experiment())
    return _found(folder, _run(folder, one, cell, None))


def run_healthy(folder: Path) -> Path:
    """Run a sequential cell and two repeats of a pipeline, for the defects of files."""
    cells = (VIG_SEQ.experiment(microbatches=1), VIG.experiment(), VIG.experiment(repeat=1))
    for cell in manifest_of(folder, *cells):
        assert run(folder, cell, env={"GNNHPC_THREADS": "1"}).result.valid
    return folder


def stop_early() -> None:
    """End the first attempt with an error after it has written checkpoints."""
    from gnnhpc.engines.native import NativeEngine

    def step(original: Any, engine: NativeEngine, batch: Any) -> Any:
        if batch.microbatches[0].context.step == STOPS_AT:
            raise RuntimeError("this attempt is to end here")
        return original(engine, batch)

    around(NativeEngine, "train_step", step)


def plant_by_name(name: str) -> None:
    """Ranks are processes of their own, so a plant reaches them by its name."""
    import tests.defects.plants  # noqa: F401

    DEFECTS[name].plant()


def _run(folder: Path, one: Any, cell: Cell, plant: Any) -> Ran:
    return run(folder, one, env=dict(cell.env), plant=plant)


def _found(folder: Path, ran: Ran) -> Sequence[Finding]:
    try:
        found = list(_in_result(ran.result))
    except (OSError, InputError) as error:
        text = f"ranks ended with {ran.statuses} ({error}): {' '.join(ran.err)[-2000:]}"
        return [Finding("failure", "no result", text)]
    return found or list(_in_report(folder))


def _in_result(result: Result) -> Iterator[Finding]:
    for check in result.audit:
        if check.verdict in FLAGGED and check.name not in BUSY:
            yield Finding(check.name, check.verdict, check.detail)
    if result.failure is not None:
        yield Finding("failure", "failed", result.failure.error)


def _in_report(folder: Path) -> Iterator[Finding]:
    """What the report and `gnnhpc check` of a run folder find."""
    try:
        run = load_run(folder)
    except InputError as error:
        yield Finding("reader", "invalid", str(error))
        return
    for check in run.checks.to_dict("records"):
        if check["verdict"] in FLAGGED and check["name"] not in BUSY:
            yield Finding(check["name"], check["verdict"], check["detail"])
    for cell in read_manifest(RunPaths(folder).manifest):
        for attempt in RunPaths(folder).cell(cell.id).attempts():
            for audited in audit_attempt(attempt):
                if audited.verdict in FLAGGED and audited.name not in BUSY:
                    yield Finding(audited.name, audited.verdict, audited.detail)
