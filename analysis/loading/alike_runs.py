"""Which of several runs may be joined: in each study those that are alike in code and machine."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from analysis.across.likeness import (
    LAYOUT_KEYS,
    MAY_DIFFER,
    Facts,
    alike,
    in_words,
    joined_facts,
    like_groups,
)
from analysis.loading.run import Run

Study = str
"""Settings that cells share whose speedups may be compared, as text."""
Measured = Mapping[str, Sequence[Facts]]
"""Configuration, as text -> the facts of its cells that count, in one run."""


def studies_of(run: Run) -> pd.Series[Any]:
    """The study of each cell: all settings but the layout and those that may differ in one."""
    return _texts(run, [key for key in run.settings if key not in (*MAY_DIFFER, *LAYOUT_KEYS)])


@dataclass(frozen=True)
class LikeRuns:
    """Of one study the runs that have it, by position, in groups that may be joined."""

    groups: list[list[int]]
    unlike: list[str]
    """What keeps each further group apart from the first, in words."""

    def group_of(self, number: int) -> list[int]:
        return next(group for group in self.groups if number in group)


def like_runs(runs: Sequence[Run]) -> dict[Study, LikeRuns]:
    """Which runs may be joined, of each study.

    Two runs are alike if every configuration that both measured is; without a common one, if the
    most of their cells are. One that measured nothing yet joins the first group.
    """
    measured = [_measured(run) for run in runs]
    studies = dict.fromkeys(study for each in measured for study in each)
    found: dict[Study, LikeRuns] = {}
    for study in studies:
        groups: list[list[int]] = []
        unlike: list[str] = []
        for number, each in enumerate(measured):
            if study not in each:
                continue
            mine = each[study]
            home = next(
                (
                    group
                    for group in groups
                    if all(not unlike_in_words(mine, measured[i][study]) for i in group)
                ),
                None,
            )
            if home is not None:
                home.append(number)
                continue
            if groups:
                unlike.append(unlike_in_words(measured[groups[0][0]][study], mine))
            groups.append([number])
        found[study] = LikeRuns(groups, unlike)
    return found


def unlike_in_words(mine: Measured, other: Measured) -> str:
    """What keeps two runs of a study apart, such as `code a beside b`; empty where alike."""
    common = [key for key in mine if key in other and mine[key] and other[key]]
    pairs = [(joined_facts(mine[key]), joined_facts(other[key])) for key in common]
    if not pairs:
        pairs.append((_most(mine), _most(other)))
    return next((in_words(a, b) for a, b in pairs if not alike(a, b)), "")


def _most(measured: Measured) -> dict[str, str | None]:
    facts = [each for held in measured.values() for each in held]
    groups = like_groups(facts, [""] * len(facts))
    return joined_facts([facts[i] for i in groups[0]]) if groups else {}


def _measured(run: Run) -> dict[Study, dict[str, list[Facts]]]:
    """By study and configuration, also of those of which no cell counts."""
    found: dict[Study, dict[str, list[Facts]]] = {}
    rows = zip(
        studies_of(run),
        _texts(run, run.settings),
        run.cells["cell"],
        run.cells["counts"],
        strict=True,
    )
    for study, configuration, cell, counts in rows:
        held = found.setdefault(study, {}).setdefault(configuration, [])
        if counts:
            held.append(run.facts.get(str(cell), {}))
    return found


def _texts(run: Run, keys: Sequence[str]) -> pd.Series[Any]:
    """These settings of each cell; one that a cell does not have is left out, as in other runs."""
    rows = run.cells[list(keys)].to_dict("records")
    texts = [
        json.dumps({str(k): _plain(v) for k, v in sorted(row.items()) if not pd.isna(v)})
        for row in rows
    ]
    return pd.Series(texts, index=run.cells.index, dtype=object)


def _plain(value: Any) -> Any:
    """A frame makes whole numbers fractions where another row has none."""
    is_number = isinstance(value, int | float) or hasattr(value, "item")
    return float(value) if is_number and not isinstance(value, bool | str) else str(value)
