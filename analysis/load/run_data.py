"""Loads a run folder as tidy data frames: cells, steps, seconds of layers and stages, checks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.load.cells import attempt_rows, cell_row, flat_settings
from analysis.load.comparable import (
    SEPARATE,
    Environment,
    environment_of,
    mark_comparable,
)
from analysis.load.equivalent_cells import Equivalence, compare_equivalent_cells
from analysis.load.flags import DAMAGED, EQUIVALENT, NOT_COMPARABLE, Raised
from analysis.load.rank_steps import Places, rank_steps, steps_of_ranks
from analysis.load.read_records import RankFile, Records, read_records
from analysis.load.validate_records import check_result
from analysis.statistics.noise import add_noise_columns, mark_steps
from gnnhpc.core.errors import InputError
from gnnhpc.core.run_paths import RunPaths
from gnnhpc.experiment.manifest import Cell, read_manifest
from gnnhpc.records.attempts import Attempt, choose_attempt, read_attempts, resume_chain
from gnnhpc.records.result_file import Result
from gnnhpc.records.schema import FLAGGED
from gnnhpc.records.submissions import read_provenance

AT_BEST_VALIDATION = "test_at_best_val_accuracy"
"""The column of cells that `accuracy_at_best_validation` fills."""


@dataclass(frozen=True)
class RunData:
    """The records of a run folder, or of several; `cell` is a categorical in every frame."""

    root: Path
    """The run folder; of several runs the first one's."""
    cells: pd.DataFrame
    """One row a cell of the manifest: its settings, the attempt that counts, status and results.
    `valid`: done, and no check is invalid. `not_comparable`: why its numbers cannot be averaged
    with the others'. `counts`: valid and comparable; averages and ratios have only these cells."""
    steps: pd.DataFrame
    """One row a cell and mini-batch that every rank recorded: `wall_s` and `step_s` are the slowest
    rank's seconds, `samples` those of all replicas. `kept`: counts in averages."""
    ranks: pd.DataFrame
    """One row a rank and mini-batch: the fields of StepRecord with cell, rank, stage, replica."""
    layer_times: pd.DataFrame
    """Forward and backward seconds of each group of layers, rank and profiled mini-batch."""
    stage_times: pd.DataFrame
    """Forward, backward and weight-gradient seconds of each virtual stage and mini-batch."""
    spans: pd.DataFrame
    """What each rank did when inside mini-batches."""
    attempts: pd.DataFrame
    """One row an attempt: its status, and whether its records are used."""
    phases: pd.DataFrame
    """One row a cell and phase: warm-up, outliers, and noise of the machine."""
    checks: pd.DataFrame
    """One row a cell and check that flags it: cell, name, verdict, detail."""
    settings: tuple[str, ...]
    """The columns of `cells` that determine what is measured: all settings but seed and repeat."""
    environments: Mapping[str, Environment] = field(default_factory=dict)
    """What each cell with records ran in."""
    equivalence: Equivalence = field(default_factory=Equivalence)
    """What comparing cells that must learn the same found."""
    manifest: Sequence[Cell] = ()
    """The planned cells; empty for several runs."""
    results: Mapping[str, Result] = field(default_factory=dict)
    """The results that count of done cells, without damaged ones; empty for several runs."""
    provenance: Mapping[str, Any] | None = None
    """Commit, versions, host and command line of the submission; None without the file."""
    runs: tuple[str, ...] = ()
    """The names of the runs that were concatenated; empty for a single run."""
    notes: tuple[str, ...] = ()
    """How they were concatenated, a sentence each."""

    @property
    def name(self) -> str:
        return " + ".join(self.runs) or self.root.resolve().name


def load_run(run: Path | str, *, separate: bool = False) -> RunData:
    """Read a run folder, which may be a copy, and may have cells that still run.

    With `separate`, cells that are not comparable with most others are configurations of their own.
    A cell with damaged records is invalid, and a check says what is wrong. Raises InputError for a
    path that is no run folder, and for a damaged manifest or provenance.
    """
    paths = RunPaths(Path(run))
    if not paths.root.is_dir():
        raise InputError(paths.root, None, "no such folder", "a run folder")
    manifest = read_manifest(paths.manifest)
    attempts = [read_attempts(paths.cell(cell.id)) for cell in manifest]
    chosen = [
        _checked(cell, choose_attempt(mine)) for cell, mine in zip(manifest, attempts, strict=True)
    ]
    files = [
        file
        for number, cell in enumerate(manifest)
        for file in _files(number, cell, chosen[number], attempts[number])
    ]
    records = read_records(files)
    for number, damage in records.damage.items():
        one = chosen[files[number].cell]
        if one is not None and not one.damage:
            chosen[files[number].cell] = replace(one, damage=damage)
    return _run_data(paths, manifest, attempts, chosen, files, records, separate=separate)


def _checked(cell: Cell, attempt: Attempt | None) -> Attempt | None:
    """The attempt, marked as damaged where its result is another cell's or has no digests."""
    if attempt is None or attempt.damage:
        return attempt
    try:
        check_result(cell, attempt)
    except InputError as error:
        return replace(attempt, damage=str(error))
    return attempt


def _files(
    number: int, cell: Cell, chosen: Attempt | None, attempts: Sequence[Attempt]
) -> Iterator[RankFile]:
    """The rank files of an attempt and of those that it resumed; all of them if it is done."""
    if chosen is None or chosen.damage:
        return
    done = chosen.status == "done"
    written = chosen.result.records if chosen.result and done else {}
    for used in resume_chain(chosen, attempts):
        for rank in range(cell.experiment.process_layout.world_size):
            path = used.attempt.records(rank)
            same = used.attempt.number == chosen.number
            name = path.name if same else f"../{used.attempt.root.name}/{path.name}"
            if done or path.exists():
                yield RankFile(path, number, cell.id, used.attempt.number, rank, written.get(name))


def _run_data(
    paths: RunPaths,
    manifest: Sequence[Cell],
    attempts: Sequence[Sequence[Attempt]],
    chosen: Sequence[Attempt | None],
    files: Sequence[RankFile],
    records: Records,
    *,
    separate: bool,
) -> RunData:
    names = [cell.id for cell in manifest]
    damaged = [number for number, attempt in enumerate(chosen) if attempt and attempt.damage]
    places = Places(files, records.headers, names, damaged)
    ranks = rank_steps(places.place(records.steps))
    headers: list[list[dict[str, Any]]] = [[] for _ in names]
    for file, header in zip(files, records.headers, strict=True):
        if header is not None and file.cell not in damaged:
            headers[file.cell].append(header)
    environments = {
        name: environment_of(mine) for name, mine in zip(names, headers, strict=True) if mine
    }
    rows = zip(manifest, chosen, attempts, headers, strict=True)
    cells = pd.DataFrame([cell_row(*row) for row in rows])
    cells["cell"] = pd.Categorical(cells["cell"], names)
    cells["redone"] = places.redone(records.steps, len(names))
    settings = tuple({key: None for cell in manifest for key in flat_settings(cell.experiment)})
    raised = list(_raised(names, chosen))
    equivalence = compare_equivalent_cells(manifest, ranks, cells, raised)
    for verdict, found in (
        ("invalid", equivalence.divergences),
        ("suspect", equivalence.suspects),
    ):
        raised += [Raised(cell, EQUIVALENT, verdict, cause) for cell, cause in found.items()]
    cells["valid"] &= ~cells["cell"].isin(list(equivalence.divergences))
    cells["not_comparable"] = mark_comparable(cells, environments, settings)
    if separate:
        cells[SEPARATE] = cells["not_comparable"]
        settings = (*settings, SEPARATE)
    else:
        raised += [
            Raised(str(cell), NOT_COMPARABLE, "suspect", f"{words}; it is in no average")
            for cell, words in zip(cells["cell"], cells["not_comparable"], strict=True)
            if words
        ]
    cells["counts"] = cells["valid"] & ((cells["not_comparable"] == "") | separate)
    checks = pd.DataFrame(raised, columns=list(Raised._fields))
    # As gnnhpc.records.schema.Check.flag: a check without a verdict is no finding of its kind.
    named = checks["name"].where(checks["verdict"] != "inconclusive", "inconclusive")
    flags = named.groupby(checks["cell"], sort=False).agg(
        lambda mine: ";".join(dict.fromkeys(mine))
    )
    cells["flags"] = [str(flags.get(name, "")) for name in names]
    steps, phases = mark_steps(steps_of_ranks(ranks, cells["world_size"].to_numpy()))
    cells[AT_BEST_VALIDATION] = accuracy_at_best_validation(steps, cells)
    return RunData(
        root=paths.root,
        cells=cells,
        steps=steps,
        ranks=ranks,
        layer_times=places.place(records.layer_times),
        stage_times=places.place(records.stage_times),
        spans=places.place(records.spans),
        attempts=_attempt_frame(manifest, attempts, chosen),
        phases=add_noise_columns(phases, ranks),
        checks=checks,
        settings=settings,
        environments=environments,
        equivalence=equivalence,
        manifest=manifest,
        results={
            name: used.result
            for name, used in zip(names, chosen, strict=True)
            if used and used.result and used.status == "done"
        },
        provenance=read_provenance(paths),
    )


def accuracy_at_best_validation(steps: pd.DataFrame, cells: pd.DataFrame) -> pd.Series[float]:
    """Accuracy of the test samples after the training step with the best validation accuracy.

    nan for cells without validation samples. An evaluation has `test_steps` mini-batches.
    """
    if not {"accuracy", "val_accuracy"} <= set(steps.columns):
        return pd.Series(float("nan"), index=cells.index)
    tests = steps[(steps["phase"] == "test").to_numpy()]
    size = cells["test_steps"].clip(lower=1).to_numpy()[tests["cell"].cat.codes]
    number = (tests["step"] // size).rename("evaluation")
    means = tests.groupby(["cell", number], observed=True)[["accuracy", "val_accuracy"]].mean()
    known = means.dropna().reset_index()
    best = known.sort_values("val_accuracy", kind="stable", ascending=False)
    first = best.drop_duplicates("cell").set_index("cell")["accuracy"]
    return cells["cell"].astype(str).map(first.rename(str)).astype(float)


def _raised(names: Sequence[str], chosen: Sequence[Attempt | None]) -> Iterator[Raised]:
    """The checks of each result that flag the cell; of a damaged cell the damage alone."""
    for cell, attempt in zip(names, chosen, strict=True):
        if attempt and attempt.damage:
            yield Raised(cell, DAMAGED, "invalid", attempt.damage)
        elif attempt and attempt.result:
            flagged = (check for check in attempt.result.audit if check.verdict in FLAGGED)
            yield from (Raised(cell, one.name, one.verdict, one.detail) for one in flagged)


def _attempt_frame(
    manifest: Sequence[Cell],
    attempts: Sequence[Sequence[Attempt]],
    chosen: Sequence[Attempt | None],
) -> pd.DataFrame:
    """All attempts, the ones that count as they turned out to be, which may be damaged."""
    rows: list[dict[str, Any]] = []
    for cell, mine, used in zip(manifest, attempts, chosen, strict=True):
        known = [used if used and used.number == one.number else one for one in mine]
        rows += attempt_rows(cell, known, used)
    columns = ["cell", "attempt", "status", "valid", "used", "resumed_from", "job", "failure"]
    return pd.DataFrame(rows, columns=[*columns, "core_s"])
