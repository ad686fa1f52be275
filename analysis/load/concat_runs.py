"""How several runs that were loaded together become one.

A cell that one run lacks counts where another has it, a cell that several measured is a repeat
more, and a copied measurement counts once. Where runs of one study have different environments,
their cells are configurations of their own, by the setting `run`, with baselines of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.load.comparable import (
    RUN_FOLDER,
    differences_in_words,
    environment_key,
    study_settings,
)
from analysis.load.stored_cells import StoredCell, read_cells
from gnnhpc.core.errors import InputError
from gnnhpc.core.run_paths import RunPaths
from gnnhpc.records.submissions import read_provenance

RUN = "run"
"""The setting of cells whose run has another environment than another run of the report."""


def run_folders(roots: Sequence[Path]) -> dict[str, RunPaths]:
    """Each run's folder by its name, or by its whole path where two have the same name.

    Raises InputError for a folder that is given twice.
    """
    places = [root.resolve() for root in roots]
    if len(set(places)) < len(places):
        raise InputError(roots[-1], None, "the same folder twice", "different runs")
    names = [place.name for place in places]
    if len(set(names)) < len(names):
        names = [str(place) for place in places]
    return {name: RunPaths(root) for name, root in zip(names, roots, strict=True)}


def cells_of_runs(folders: Mapping[str, RunPaths]) -> tuple[list[StoredCell], list[str]]:
    """Each measurement of each cell once, with a name; and how many cells of which run, in lines.

    Raises InputError for a folder or manifest that is missing or damaged.
    """
    found = [cell for run, paths in folders.items() for cell in read_cells(run, paths)]
    measured = {cell.plan.id for cell in found if cell.measured}
    kept: dict[tuple[str, str], StoredCell] = {}
    names: set[str] = set()
    for cell in found:
        one = cell.plan.id
        # Copies have equal records, and of cells that no run measured one is enough.
        measurement = (one, (cell.digest or cell.run) if cell.measured else "")
        if measurement in kept or (one in measured and not cell.measured):
            continue
        cell.name = f"{one}@{cell.run}" if one in names else one
        names.add(cell.name)
        kept[measurement] = cell
    if len(folders) == 1:
        return list(kept.values()), []
    counts = Counter(cell.run for cell in kept.values())
    sizes = ", ".join(f"{run} ({counts[run]} cells)" for run in folders)
    lines = [f"Several runs in one report: {sizes}."]
    if left_out := len(found) - len(kept):
        lines.append(f"{left_out} cells are copies, or were measured in another run.")
    return list(kept.values()), lines


def separate_runs(
    cells: pd.DataFrame, stored: Mapping[str, StoredCell], settings: Sequence[str]
) -> tuple[pd.Series[str], list[str]]:
    """The run of each cell whose study has several environments, else empty; and why, in lines."""
    labels = pd.Series("", index=cells.index, dtype=object)
    lines: dict[str, None] = {}
    for _, study in cells.groupby(study_settings(settings), dropna=False, sort=False):
        of_runs = study[study["counts"]].drop_duplicates(RUN_FOLDER)["cell"]
        first, *others = [stored[cell].environment for cell in of_runs] or [{}]
        apart = [one for one in others if environment_key(one) != environment_key(first)]
        for one in apart:
            lines[f"Rows are separate by run: {differences_in_words(one, first)}."] = None
        if apart:
            labels[study.index] = study[RUN_FOLDER]
    return labels, list(lines)


def joined_provenance(folders: Mapping[str, RunPaths]) -> dict[str, Any] | None:
    """What is equal in all runs once, and what differs with the name of each run; None where no
    run has a provenance.json, and InputError for a damaged one."""
    read = {name: read_provenance(paths) for name, paths in folders.items()}
    known = {name: one for name, one in read.items() if one is not None}
    joined: dict[str, Any] = {}
    for key in dict.fromkeys(key for one in known.values() for key in one):
        values = [one.get(key) for one in known.values()]
        joined[key] = values[0]
        if values != values[:1] * len(values):
            texts = map(provenance_text, values)
            joined[key] = "; ".join(map(": ".join, zip(known, texts, strict=True)))
    return joined or None


def provenance_text(value: object) -> str:
    """A value of provenance.json in one line."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {inner}" for key, inner in value.items())
    return " ".join(map(str, value)) if isinstance(value, list) else str(value or "")
