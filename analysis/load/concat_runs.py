"""How several runs that were loaded together become one.

A cell that one run lacks counts where another has it, a cell that several measured is a repeat
more, and a copied measurement counts once. Where runs of one study have different environments,
their cells are configurations of their own, by the setting `run`, with baselines of their own.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.load.comparable import (
    RUN_FOLDER,
    differences_in_words,
    environment_key,
    study_settings,
)
from analysis.load.equivalent_cells import Trajectory, compare_losses
from analysis.load.stored_cells import StoredCell
from gnnhpc.core.errors import InputError
from gnnhpc.core.run_paths import RunPaths

RUN = "run"
"""The setting of cells whose run has another environment than another run of the report."""
_NOT_MEASURED = ("missing", "unfinished")


def run_folders(roots: Sequence[Path]) -> dict[str, RunPaths]:
    """Each run's folder by its name, with as many of the folders above as distinguish them.

    Raises InputError for a folder that is given twice.
    """
    places = [root.resolve() for root in roots]
    for number, place in enumerate(places):
        if place in places[:number]:
            raise InputError(roots[number], None, "the same folder twice", "different runs")
    depths = range(1, max(len(place.parts) for place in places) + 1)
    tries = (["/".join(place.parts[-depth:]) for place in places] for depth in depths)
    names = next(names for names in tries if len(set(names)) == len(names))
    return {name: RunPaths(root) for name, root in zip(names, roots, strict=True)}


def separate_runs(
    cells: pd.DataFrame, stored: Mapping[str, StoredCell], settings: Sequence[str]
) -> tuple[pd.Series[str], list[str]]:
    """The run of each cell whose study has several environments, else empty; and why, in lines."""
    labels = pd.Series("", index=cells.index, dtype=object)
    lines: dict[str, None] = {}
    for _, study in cells.groupby(study_settings(settings), dropna=False, sort=False):
        first = study[study["counts"]].drop_duplicates(RUN_FOLDER)
        distinct: dict[str, StoredCell] = {}
        for cell in first["cell"]:
            distinct.setdefault(environment_key(stored[cell].environment), stored[cell])
        for one in list(distinct.values())[1:]:
            reference = next(iter(distinct.values()))
            why = differences_in_words(one.environment, reference.environment)
            lines[f"Rows are separate by run, {one.run}: {why}."] = None
        if len(distinct) > 1:
            labels[study.index] = study[RUN_FOLDER]
    return labels, list(lines)


def measured_once(
    cells: pd.DataFrame, stored: Mapping[str, StoredCell]
) -> tuple[pd.DataFrame, list[str]]:
    """The rows that measure something which no other has; and what was left out, in lines."""
    cells = cells.assign(
        id=[one.plan.id for one in stored.values()],
        measured=~cells["status"].isin(_NOT_MEASURED),
    )
    same = ["id", RUN]
    some = cells.groupby(same, sort=False)[["valid", "measured"]].transform("any").any(axis=1)
    elsewhere = ~cells["measured"] & (some | cells.duplicated(same))
    copied = (cells["digest"] != "") & cells.duplicated([*same, "digest"]) & cells["measured"]
    kept = cells[~elsewhere & ~copied]
    repeated = int(kept[kept["valid"]].duplicated(same).sum())
    lines = [
        line
        for count, line in (
            (elsewhere.sum(), f"{elsewhere.sum()} cells were not measured in one of the runs."),
            (repeated, f"{repeated} cells were measured in two comparable runs: more repeats."),
            (copied.sum(), f"{copied.sum()} measurements are copies in another run: counted once."),
        )
        if count
    ]
    return kept.drop(columns=["id", "measured"]), lines


def joined_provenance(found: Mapping[str, Mapping[str, Any] | None]) -> dict[str, Any] | None:
    """What is equal in all runs once, and what differs with the name of each run."""
    known = {name: one for name, one in found.items() if one is not None}
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


def loss_notes(learnt: Mapping[str, Trajectory], stored: Mapping[str, StoredCell]) -> Iterator[str]:
    """Whether the cells that two runs both measured learn the same."""
    by_run: dict[str, dict[str, Trajectory]] = {one.run: {} for one in stored.values()}
    for name, trajectory in learnt.items():
        by_run[stored[name].run][stored[name].plan.id] = trajectory
    for (a, of_a), (b, of_b) in itertools.combinations(by_run.items(), 2):
        compared, apart = compare_losses(of_a, of_b)
        both = f"{compared} cells that {a} and {b} both measured"
        if apart:
            yield f"{len(apart)} of {both} learn something else, such as {apart[0]}."
        elif compared:
            yield f"Losses agree within rounding in all {both}."
