"""Seconds that each run spends in a group of layers in a training step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.compare.matched import Match
from analysis.compare.ratios import Pair
from analysis.loading.run import Run
from analysis.stats.intervals import Sample
from analysis.summary.configurations import Configuration

Seconds = Mapping[tuple[str, str], NDArray[np.float64]]
"""(cell, group) -> of each step that counts, forward and backward, over all ranks."""


def group_seconds(run: Run) -> Seconds:
    """Of training steps that count; empty for a run without groups."""
    groups = run.groups[(run.groups["phase"] == "train").to_numpy()]
    steps = run.steps[run.steps["kept"] & (run.steps["phase"] == "train")]
    if groups.empty or steps.empty:
        return {}
    groups = groups[np.isin(_numbers(groups), _numbers(steps))]
    seconds = groups["forward_s"] + groups["backward_s"]
    keys = [groups[name] for name in ("cell", "group", "step")]
    by_step = seconds.groupby(keys, observed=True).sum()
    found = {}
    for key, part in by_step.groupby(level=["cell", "group"], observed=True):
        cell, group = cast(tuple[str, str], key)
        found[str(cell), str(group)] = part.to_numpy()
    return found


def _numbers(frame: pd.DataFrame) -> NDArray[np.int64]:
    """One number for each cell and step; the cells are the same categories in all frames."""
    step = frame["step"].to_numpy().astype(np.int64)
    return frame["cell"].cat.codes.to_numpy().astype(np.int64) << 32 | step


def group_pairs(matches: Sequence[Match], a: Seconds, b: Seconds) -> list[Pair]:
    """Each group of layers that both runs recorded, of each configuration in training."""
    return [
        Pair(
            match.name,
            match.phase,
            group,
            Sample(_runs(match.a, a, group), match.repeats(match.a)),
            Sample(_runs(match.b, b, group), match.repeats(match.b)),
        )
        for match in matches
        if match.phase == "train"
        for group in sorted(_groups(match.a, a) & _groups(match.b, b))
    ]


def _groups(one: Configuration, seconds: Seconds) -> set[str]:
    """The groups that every cell recorded."""
    used = set(one.used["cell"].astype(str))
    by_cell: dict[str, set[str]] = {cell: set() for cell in used}
    for cell, group in seconds:
        if cell in used:
            by_cell[cell].add(group)
    return set.intersection(*by_cell.values()) if by_cell else set()


def _runs(one: Configuration, seconds: Seconds, group: str) -> list[NDArray[np.float64]]:
    return [seconds[str(cell), group] for cell in one.used["cell"]]
