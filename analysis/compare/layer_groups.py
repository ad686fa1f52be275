"""Seconds that each run spends in a group of layers in a training step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.compare.matched import Match
from analysis.loading.run import Run
from analysis.stats.intervals import Sample
from analysis.summary.configurations import Configuration

Seconds = Mapping[tuple[str, str], NDArray[np.float64]]
"""(cell, group) -> of each step that counts, forward and backward, over all ranks."""


def group_seconds(run: Run) -> Seconds:
    """Of training steps that count; empty for a run without groups."""
    groups = run.groups[run.groups["phase"] == "train"]
    kept = run.steps.loc[run.steps["kept"] & (run.steps["phase"] == "train"), ["cell", "step"]]
    if groups.empty or kept.empty:
        return {}
    counted = pd.MultiIndex.from_frame(kept.astype({"cell": str}))
    mine = pd.MultiIndex.from_arrays([groups["cell"].astype(str), groups["step"]])
    groups = groups[mine.isin(counted)]
    total = groups["forward_s"] + groups["backward_s"]
    keys = [groups[name].astype(str) for name in ("cell", "group")]
    by_step = total.groupby([*keys, groups["step"]]).sum()
    found = {}
    for key, part in by_step.groupby(level=["cell", "group"]):
        cell, group = cast(tuple[str, str], key)
        found[cell, group] = part.to_numpy()
    return found


def group_samples(
    pairs: Sequence[Match], a: Seconds, b: Seconds
) -> list[tuple[Match, str, Sample, Sample]]:
    """Each group of layers that both runs recorded, of each configuration."""
    return [
        (match, group, _sample(match.a, a, group), _sample(match.b, b, group))
        for match in pairs
        if match.phase == "train"
        for group in sorted(_groups(match.a, a) & _groups(match.b, b))
    ]


def _groups(one: Configuration, seconds: Seconds) -> set[str]:
    """The groups that every cell recorded."""
    by_cell = [
        {group for cell, group in seconds if cell == name} for name in map(str, one.used["cell"])
    ]
    return set.intersection(*by_cell) if by_cell else set()


def _sample(one: Configuration, seconds: Seconds, group: str) -> Sample:
    runs = [seconds[str(cell), group] for cell in one.used["cell"]]
    return Sample(runs, one.sample.repeats)
