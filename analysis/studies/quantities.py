"""The quantities that claims of studies are about, and that follow from two rows or more."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from analysis.statistics.intervals import Interval, ratio_of_pairs, t_bounds
from analysis.statistics.pairs import FEWEST_PAIRS
from analysis.studies.study_rows import Row
from analysis.summary.baseline_and_speedup import same_value

_WHO_COMPUTES = {
    *("layout", "microbatches", "engine", "schedule", "virtual_stages", "balance"),
    *("chunks", "rebuild", "activation_checkpointing", "bucket_mib"),
}
"""What one chunk of a graph may differ in and learn the same."""


def like(
    row: Row, rows: Sequence[Row], changes: dict[str, Any], free: Sequence[str] = ()
) -> Row | None:
    """The row of the same environment with these settings, and equal in all but the free ones."""
    expected = {key: v for key, v in {**row.settings, **changes}.items() if key not in free}
    others = (one for one in rows if one is not row and one.environment == row.environment)
    return next((one for one in others if not _differing(one, expected)), None)


def with_accuracy_lost(rows: Sequence[Row]) -> list[Row]:
    """The rows with the accuracy that chunks lost against the whole graph, on validation nodes."""
    found = []
    for row in rows:
        whole = _whole_graph_of(row, rows) if row.columns["chunk_count"] > 1 else None
        lost = _difference_of_seeds(whole, row, "val_accuracy") if whole else None
        if lost is None:
            found.append(row)
            continue
        columns = row.columns | lost.columns("accuracy_lost")
        intervals = {**row.intervals, "accuracy_lost": lost}
        found.append(replace(row, columns=columns, intervals=intervals))
    return found


def _whole_graph_of(row: Row, rows: Sequence[Row]) -> Row | None:
    """The row that learns the same from the whole graph; of several the one most like `row`."""
    found = [
        one
        for one in rows
        if one.columns["chunk_count"] == 1 and _differing(one, row.settings) <= _WHO_COMPUTES
    ]
    return min(found, key=lambda one: len(_differing(one, row.settings)), default=None)


def _differing(row: Row, expected: Mapping[str, Any]) -> set[str]:
    """The settings in which a row differs from these."""
    return {k for k, v in expected.items() if not same_value(row.settings.get(k), v)}


def _difference_of_seeds(row: Row, other: Row, metric: str) -> Interval | None:
    """The row's less the other's, from the seeds that both have, or of published rows; None
    without any."""
    if row.configuration is None:
        mine, theirs = row.interval(metric), other.interval(metric)
        return Interval(mine.value - theirs.value, None, None) if mine and theirs else None
    both = pd.concat([row.of_seeds(metric), other.of_seeds(metric)], axis=1).dropna()
    less = (both.iloc[:, 0] - both.iloc[:, 1]).to_numpy()
    if not less.size:
        return None
    basis = f"{less.size} seed{'s' if less.size > 1 else ''}"
    if less.size < FEWEST_PAIRS:
        return Interval(float(less.mean()), None, None, f"of {basis} only")
    low, high = t_bounds(less)
    return Interval(float(less.mean()), float(low), float(high), basis)


def _speedup(row: Row, other: Row) -> Interval | None:
    """Samples a second of the row over those of the other."""
    if row.configuration is None or other.configuration is None:
        work = row.columns.get("work", 1.0) / other.columns.get("work", 1.0)
        return Interval(work * other.columns["seconds"] / row.columns["seconds"], None, None)
    return row.configuration.speedup_over(other.configuration)


def _ratio_of_speedups(row: Row, other: Row, rows: Sequence[Row]) -> Interval | None:
    """The speedup of the row over the other, over that of the same two with edges cut out once."""
    once = [like(one, rows, {"rebuild": "once"}) for one in (row, other)]
    times = [one.means for one in (row, other, *once) if one is not None]
    shared = [key for key in times[0] if all(key in each for each in times)]
    if len(times) < 4 or len(shared) < FEWEST_PAIRS:
        return None
    fast, slow, other_fast, other_slow = (np.array([each[key] for key in shared]) for each in times)
    return ratio_of_pairs(slow / fast, other_slow / other_fast)


def _share_of_step(row: Row, other: Row) -> Interval | None:
    """All groups of one kind, of the step of their sequential run."""
    part, step = row.interval("seconds"), other.interval("seconds")
    return part.over(step.value / row.columns["groups"]) if part and step else None


OF_PAIRS: dict[str, Callable[[Row, Row, Sequence[Row]], Interval | None]] = {
    "speedup": lambda row, other, _: _speedup(row, other),
    "slowdown": lambda row, other, _: _speedup(other, row),
    "ratio of speedups": _ratio_of_speedups,
    "difference of test accuracy": lambda row, other, _: _difference_of_seeds(
        row, other, "test_accuracy"
    ),
    "share of the step": lambda row, other, _: _share_of_step(row, other),
}
"""Each is a function of a row, the row that it is paired with, and all rows; None where it was not
measured."""
