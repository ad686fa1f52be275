"""Loads several runs as one: concatenated frames with the column `run_folder` in `cells`.

A cell that one run lacks counts where another has it, a cell that several measured is a repeat
more, and a copied measurement counts once. Where runs of one study have different environments,
their cells are configurations of their own, by the setting `run`, with baselines of their own.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.load.comparable import (
    FREE_SETTINGS,
    LAYOUT_SETTINGS,
    differences_in_words,
    environment_key,
)
from analysis.load.equivalent_cells import Equivalence, divergence, trajectories
from analysis.load.run_data import RunData, load_run
from gnnhpc.core.errors import InputError

RUN = "run"
"""The setting of cells whose run has another environment than another run of the report."""
FOLDER = "run_folder"
"""The column of cells with the name of the run folder that each is from."""
_FRAMES = ("cells", "steps", "ranks", "layer_times", "stage_times", "spans", "attempts", "phases")
_NOT_MEASURED = ("missing", "unfinished")


def load_runs(roots: Sequence[Path], *, separate: bool = False) -> RunData:
    """Load one run folder, or several as one; raises InputError as `load` does, and for a folder
    that is given twice.
    """
    runs = [load_run(root, separate=separate) for root in roots]
    if len(runs) == 1:
        return runs[0]
    places = [root.resolve() for root in roots]
    for number, place in enumerate(places):
        if place in places[:number]:
            raise InputError(roots[number], None, "the same folder twice", "different runs")
    return concat_runs(runs, _names(places))


def concat_runs(runs: Sequence[RunData], names: Sequence[str]) -> RunData:
    """One RunData with the cells of all runs that measure something the others do not have."""
    settings = tuple(dict.fromkeys(key for run in runs for key in run.settings))
    cells = pd.concat(
        [
            run.cells.assign(cell=run.cells["cell"].astype(str), **{FOLDER: name}, place=number)
            for number, (run, name) in enumerate(zip(runs, names, strict=True))
        ],
        ignore_index=True,
    )
    labels, apart = _labels(runs, cells, settings, names)
    cells[RUN] = labels
    kept, notes = _kept(cells)
    ids = [
        {
            str(row.cell): str(row.new)
            for row in kept[kept["place"] == number].itertuples(index=False)
        }
        for number in range(len(runs))
    ]
    order = pd.Index(kept["new"])
    frames = {
        name: _concat([getattr(run, name) for run in runs], ids, order) for name in _FRAMES[1:]
    }
    kept = kept.assign(cell=pd.Categorical(kept["new"], order)).drop(columns=["new", "place"])
    sizes = ", ".join(f"{name} ({len(mine)} cells)" for name, mine in zip(names, ids, strict=True))
    return RunData(
        root=runs[0].root,
        cells=kept.reset_index(drop=True),
        **frames,
        checks=_concat([run.checks for run in runs], ids, None),
        settings=(*settings, RUN) if kept[RUN].any() else settings,
        environments={
            new: run.environments[old]
            for run, mine in zip(runs, ids, strict=True)
            for old, new in mine.items()
            if old in run.environments
        },
        manifest=(),
        results={},
        equivalence=_concat_equivalence([run.equivalence for run in runs], ids),
        provenance=_concat_provenance([run.provenance for run in runs], names),
        runs=tuple(names),
        notes=(
            f"Several runs in one report: {sizes}.",
            *apart,
            *notes,
            *_loss_notes(runs, names),
        ),
    )


def _names(places: Sequence[Path]) -> list[str]:
    """The folders' names, with as many of the folders above as distinguish them."""
    depths = range(1, max(len(place.parts) for place in places) + 1)
    tries = (["/".join(place.parts[-depth:]) for place in places] for depth in depths)
    return next(names for names in tries if len(set(names)) == len(names))


def _labels(
    runs: Sequence[RunData], cells: pd.DataFrame, settings: Sequence[str], names: Sequence[str]
) -> tuple[pd.Series[str], list[str]]:
    """The run of each cell whose study has several environments, else empty; and why, in lines."""
    free = {*FREE_SETTINGS, *LAYOUT_SETTINGS}
    keys = [key for key in settings if key not in free]
    labels = pd.Series("", index=cells.index, dtype=object)
    lines: dict[str, None] = {}
    for _, study in cells.groupby(keys, dropna=False, sort=False):
        first: dict[str, int] = {}
        reference: Mapping[str, str] = {}
        for number, mine in study[study["counts"].astype(bool)].groupby("place", sort=True):
            environment = runs[int(str(number))].environments.get(str(mine["cell"].iloc[0]), {})
            first.setdefault(environment_key(environment), int(str(number)))
            if len(first) == 1:
                reference = environment
            elif list(first.values())[-1] == number:
                why = differences_in_words(environment, reference)
                lines[f"Rows are separate by run, {names[int(str(number))]}: {why}."] = None
        if len(first) > 1:
            labels[study.index] = study[FOLDER]
    return labels, list(lines)


def _kept(cells: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """The rows that stay, with an id `new` that is unique; and what was left out, in lines."""
    same = ["cell", RUN]
    some_valid = cells.groupby(same, sort=False)["valid"].transform("any")
    measured = ~cells["status"].isin(_NOT_MEASURED)
    some_measured = measured.groupby([cells[key] for key in same], sort=False).transform("any")
    first = ~cells.duplicated(same)
    elsewhere = ~measured & (some_valid | some_measured | ~first)
    copied = (cells["digest"] != "") & cells.duplicated([*same, "digest"]) & measured
    kept = cells[~elsewhere & ~copied]
    repeated = int(kept[kept["valid"]].duplicated(same).sum())
    name = kept["cell"] + "@" + kept[FOLDER]
    kept = kept.assign(new=kept["cell"].where(~kept.duplicated("cell"), name))
    lines = [
        line
        for count, line in (
            (elsewhere.sum(), f"{elsewhere.sum()} cells were not measured in one of the runs."),
            (repeated, f"{repeated} cells were measured in two comparable runs: more repeats."),
            (copied.sum(), f"{copied.sum()} measurements are copies in another run: counted once."),
        )
        if count
    ]
    return kept, lines


def _concat(
    frames: Sequence[pd.DataFrame], ids: Sequence[Mapping[str, str]], order: Any
) -> pd.DataFrame:
    """The rows of the cells in `ids`, run after run; `order` are the categories of all new ids."""
    parts = []
    for frame, mine in zip(frames, ids, strict=True):
        old = frame["cell"].astype(str)
        rows = frame[old.isin(list(mine)).to_numpy()]
        new = old[rows.index].map(mine)
        parts.append(rows.assign(cell=pd.Categorical(new, order) if order is not None else new))
    # A column that is empty in one run must not decide the type of the whole.
    filled = [part for part in parts if len(part)] or parts[:1]
    for name in filled[0].columns:
        if name != "cell" and isinstance(filled[0][name].dtype, pd.CategoricalDtype):
            every = dict.fromkeys(c for part in filled for c in part[name].cat.categories)
            filled = [
                part.assign(**{name: part[name].cat.set_categories(list(every))}) for part in filled
            ]
    return pd.concat(filled, ignore_index=True)


def _concat_equivalence(
    found: Sequence[Equivalence], ids: Sequence[Mapping[str, str]]
) -> Equivalence:
    """What each run found among its own cells, by their new ids."""

    def renamed(name: str) -> Any:
        values = [(getattr(each, name), mine) for each, mine in zip(found, ids, strict=True)]
        if isinstance(values[0][0], tuple):
            return tuple(mine[c] for cells, mine in values for c in cells if c in mine)
        return {mine[c]: v for cells, mine in values for c, v in cells.items() if c in mine}

    return Equivalence(**{one.name: renamed(one.name) for one in fields(Equivalence)})


def _concat_provenance(
    found: Sequence[Mapping[str, Any] | None], names: Sequence[str]
) -> dict[str, Any] | None:
    """What is equal in all runs once, and what differs with the name of each run."""
    known = {name: one for name, one in zip(names, found, strict=True) if one is not None}
    joined: dict[str, Any] = {}
    for key in dict.fromkeys(key for one in known.values() for key in one):
        values = {name: one.get(key) for name, one in known.items()}
        first = next(iter(values.values()))
        equal = all(value == first for value in values.values())
        texts = (f"{name}: {provenance_text(value)}" for name, value in values.items())
        joined[key] = first if equal else "; ".join(texts)
    return joined or None


def provenance_text(value: object) -> str:
    """A value of provenance.json in one line."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {inner}" for key, inner in value.items())
    return " ".join(map(str, value)) if isinstance(value, list) else str(value or "")


def _loss_notes(runs: Sequence[RunData], names: Sequence[str]) -> Iterator[str]:
    """Whether the cells that two runs both measured learn the same."""
    for (a, name_a), (b, name_b) in itertools.combinations(zip(runs, names, strict=True), 2):
        compared, apart = compare_losses(a, b)
        both = f"{compared} cells that {name_a} and {name_b} both measured"
        if apart:
            yield f"{len(apart)} of {both} learn something else, such as {apart[0]}."
        elif compared:
            yield f"Losses agree within rounding in all {both}."


def compare_losses(a: RunData, b: RunData) -> tuple[int, list[str]]:
    """How many cells of equal id two runs have valid, and a line for each that learns something
    else in `b`.
    """
    dtypes = dict(zip(a.cells["cell"].astype(str), a.cells["dtype"], strict=True))
    learnt = [trajectories(run.ranks, dtypes) for run in (a, b)]
    valid = [set(run.cells.loc[run.cells["valid"], "cell"].astype(str)) for run in (a, b)]
    common = [cell for cell in learnt[0] if cell in learnt[1] and cell in valid[0] & valid[1]]
    causes = {cell: divergence(learnt[0][cell], learnt[1][cell]) for cell in common}
    return len(common), [f"{cell}: {cause}" for cell, cause in causes.items() if cause]
