"""Loads run folders as tidy data frames: cells, steps, seconds of layers and stages, checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from analysis.load.cells import cell_row, flat_settings
from analysis.load.comparable import RUN, SEPARATE, Environment, mark_comparable, separate_runs
from analysis.load.equivalent_cells import (
    ComparedCell,
    compare_equivalent_cells,
    valid_trajectories,
)
from analysis.load.rank_steps import rank_steps, steps_of_ranks
from analysis.load.read_cell_flags import (
    EQUIVALENT,
    NOT_COMPARABLE,
    Raised,
    flags_of_cells,
    raised_by_results,
)
from analysis.load.read_records import read_records
from analysis.load.run_folders import (
    StoredCell,
    cells_of_runs,
    joined_provenance,
    run_folders,
)
from analysis.statistics.cut_warmup_steps import add_noise_columns, mark_steps
from gnnhpc.models.custom_model import is_custom

AT_BEST_VALIDATION = "test_at_best_val_accuracy"
"""The column of cells that `accuracy_at_best_validation` fills."""

_MOST_HOSTS = 12


@dataclass(frozen=True)
class RunData:
    """The records of run folders; `cell` is a categorical in every frame."""

    runs: tuple[str, ...]
    """The names of the runs."""
    stored: Mapping[str, StoredCell]
    """Each cell as its run folder has it, in the order of `cells`."""
    cells: pd.DataFrame
    """One row a cell of the manifest: its settings, the attempt that counts, status and results.
    `valid`: done, and no check is invalid. `not_comparable`: why its numbers cannot be averaged
    with the others'. `counts`: valid and comparable; averages and ratios have only these cells.
    `compared_steps`: over how many training steps it was compared with its sequential cell;
    `no_sequential_cell`: whether there is none that must learn the same."""
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
    phases: pd.DataFrame
    """One row a cell and phase: warm-up, outliers, and noise of the machine."""
    checks: pd.DataFrame
    """One row a cell and check that flags it: cell, name, verdict, detail."""
    settings: tuple[str, ...]
    """The columns of `cells` that determine what is measured: all settings but seed and repeat."""
    provenance: Mapping[str, str]
    """Commit, versions, host and command line of the submissions; empty without the file."""
    notes: tuple[str, ...] = ()
    """How several runs were joined, a sentence each."""

    @property
    def name(self) -> str:
        return " + ".join(self.runs)

    @property
    def hosts(self) -> str:
        """The first hosts that ran cells, and how many more there are."""
        hosts = sorted({host for one in self.cells["hosts"] for host in one.split(";") if host})
        more = f" and {len(hosts) - _MOST_HOSTS} more" if len(hosts) > _MOST_HOSTS else ""
        return ", ".join(hosts[:_MOST_HOSTS]) + more

    @property
    def environments(self) -> dict[str, Environment]:
        """What each cell with records ran in."""
        return {name: one.environment for name, one in self.stored.items() if one.headers}


def load_run(*roots: Path | str, separate: bool = False) -> RunData:
    """Read a run folder, which may be a copy and may have cells that still run; or several as one.

    With `separate`, cells that are not comparable with most others are configurations of their own.
    A cell with damaged records is invalid, and a check says what is wrong. Raises InputError for a
    path that is no run folder, for a folder that is given twice, and for a damaged manifest or
    provenance.
    """
    folders = run_folders(list(map(Path, roots)))
    chosen, notes = cells_of_runs(folders)
    of_ranks, layer_times, stage_times, spans = read_records(chosen)
    stored = {cell.name: cell for cell in chosen}
    names = pd.Index(stored)
    ranks = rank_steps(of_ranks)
    cells = pd.DataFrame([cell_row(cell) for cell in chosen])
    cells["cell"] = pd.Categorical(cells["cell"], names)
    steps, phases = mark_steps(steps_of_ranks(ranks, cells["world_size"].to_numpy()))
    cells[AT_BEST_VALIDATION] = accuracy_at_best_validation(steps, cells)
    raised = list(raised_by_results(chosen))
    raised += _compare_equivalent(cells, stored, ranks, raised)
    settings = list(
        dict.fromkeys(key for one in chosen for key in flat_settings(one.plan.experiment))
    )
    environments = {name: one.environment for name, one in stored.items()}
    cells["not_comparable"] = mark_comparable(cells, environments, settings)
    cells["counts"] = cells["valid"] & ((cells["not_comparable"] == "") | separate)
    if separate:
        cells[SEPARATE] = cells["not_comparable"]
        settings.append(SEPARATE)
    else:
        raised += [
            Raised(name, NOT_COMPARABLE, "suspect", f"{words}; it is in no average")
            for name, words in zip(names, cells["not_comparable"], strict=True)
            if words
        ]
    labels, separate_lines = separate_runs(cells, environments, settings)
    if separate_lines:
        cells[RUN] = labels
        settings.append(RUN)
    checks = pd.DataFrame(raised, columns=list(Raised._fields))
    cells["flags"] = flags_of_cells(checks, names)
    return RunData(
        runs=tuple(folders),
        stored=stored,
        cells=cells,
        steps=steps,
        ranks=ranks,
        layer_times=layer_times,
        stage_times=stage_times,
        spans=spans,
        phases=add_noise_columns(phases, ranks),
        checks=checks.assign(cell=pd.Categorical(checks["cell"], names)),
        settings=tuple(settings),
        provenance=joined_provenance(folders.values()),
        notes=(*notes, *separate_lines),
    )


def _compare_equivalent(
    cells: pd.DataFrame,
    stored: Mapping[str, StoredCell],
    ranks: pd.DataFrame,
    raised: Sequence[Raised],
) -> list[Raised]:
    """Mark in `cells` which valid cells were compared, and which diverge; returns why.

    A custom model that validation could not compare may use random numbers of its process, so that
    its cells are compared with no other.
    """
    unsure = {one.cell for one in raised if one.verdict == "inconclusive"}
    plans = {
        name: (one.run, one.plan.experiment)
        for name, one in stored.items()
        if not (name in unsure and is_custom(one.plan.experiment.model.name))
    }
    compared = compare_equivalent_cells(plans, valid_trajectories(ranks, cells))
    found = [compared.get(name, ComparedCell()) for name in stored]
    cells["compared_steps"] = pd.Series([one.steps for one in found], dtype=float)
    cells["no_sequential_cell"] = [one.alone for one in found]
    cells["valid"] &= pd.Series([one.suspect or not one.cause for one in found], dtype=bool)
    return [
        Raised(name, EQUIVALENT, "suspect" if one.suspect else "invalid", one.cause)
        for name, one in compared.items()
        if one.cause
    ]


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
