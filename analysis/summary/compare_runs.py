"""Compares two runs cell by cell: step times, layer groups and losses; B may be slower than A.

Many ratios are compared at once, so each has an interval of a confidence at which all of them hold
together (Bonferroni's inequality; Dunn 1961, Journal of the American Statistical Association
56:52): of equal runs at most one in forty has a ratio that is called slower. With eight pairs or
more, intervals are by signed ranks, so that a few disturbed repeats do not hide a difference that
all others show.

A machine that is slow for a second slows all layers of that second. The seconds of one group of
layers over those of the other groups of the same step are free of it, so they show a small change
of one layer where seconds alone need many more repeats. They cannot distinguish one layer that
became slower from others that became faster; the seconds of both decide that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.load.concat_runs import compare_losses
from analysis.load.run_data import RunData, load_run
from analysis.statistics.intervals import FEWEST_STEPS, Interval, repeats_in_words
from analysis.statistics.power import CONFIDENCE
from analysis.statistics.sample import Sample
from analysis.summary.configurations import Configuration
from analysis.summary.match_runs import Match, match_runs, nearest_difference
from gnnhpc.core.errors import InputError

TOLERANCE = 0.02
"""The default share by which B may be slower."""
AVERAGES = ("mean", "median")
SLOWER = "slower"
TOLERATED = "slower, not shown to be beyond the tolerance"
FASTER = "faster"
NO_DIFFERENCE = "no difference shown"
SLOWER_RELATIVELY = "slower relative to the other layers of the same steps"
Seconds = Mapping[tuple[str, str], NDArray[np.float64]]
"""(cell, group) -> forward and backward seconds of each profiled step, over all ranks."""


@dataclass(frozen=True)
class Pair:
    """Seconds of one thing in both runs."""

    name: str
    """The configuration's."""
    phase: str
    what: str
    """`step`, or the name of a group of layers."""
    a: Sample
    b: Sample

    @property
    def has_interval(self) -> bool:
        return all(
            len(side.runs) > 1 and side.values.size >= FEWEST_STEPS for side in (self.a, self.b)
        )


@dataclass(frozen=True)
class Compared:
    """A pair with the ratio of B over A, which has no bounds where runs are too few."""

    pair: Pair
    ratio: Interval

    @property
    def name(self) -> str:
        return self.pair.name

    def averages_contradict(self, of: str) -> bool:
        """Whether the runs' averages differ the other way round than the ratio.

        The ratio is geometric, over pairs where there are some, so a run far from the others moves
        it less than the averages.
        """
        over = seconds_of(self.pair.b, of) - seconds_of(self.pair.a, of)
        return over * (self.ratio.value - 1.0) < 0.0

    def verdict(self, tolerance: float) -> str:
        """The verdict in words; with one run a side, the reason why there is none."""
        low, high = self.ratio.low, self.ratio.high
        if low is None or high is None:
            return self.ratio.basis
        if low > 1.0 + tolerance:
            return SLOWER
        if low > 1.0:
            return TOLERATED
        if high < 1.0:
            return FASTER
        return f"{NO_DIFFERENCE}{repeats_in_words(self.ratio)}"


@dataclass(frozen=True)
class ComparedGroup:
    """One group of layers of a configuration, in training."""

    seconds: Compared
    relative: Compared | None
    """Seconds over those of the other groups of the same step; None where there are no others."""
    others: Compared | None
    """Seconds of the other groups."""

    @property
    def name(self) -> str:
        return self.seconds.name

    @property
    def what(self) -> str:
        return self.seconds.pair.what

    def shown_by(self, tolerance: float) -> Compared | None:
        """What shows the group slower than is tolerated: its seconds, or its relative seconds.

        Relative seconds count only where the group's seconds are larger too, and the others' are
        not shown to be smaller.
        """
        if self.seconds.verdict(tolerance) == SLOWER:
            return self.seconds
        if self.relative is None or self.others is None:
            return None
        others_are_faster = self.others.ratio.high is not None and self.others.ratio.high < 1.0
        agrees = self.seconds.ratio.value > 1.0 and not others_are_faster
        return self.relative if agrees and self.relative.verdict(tolerance) == SLOWER else None

    def verdict(self, tolerance: float) -> str:
        shown = self.shown_by(tolerance)
        relatively = shown is not None and shown is self.relative
        return SLOWER_RELATIVELY if relatively else self.seconds.verdict(tolerance)


@dataclass(frozen=True)
class Comparison:
    """What comparing run B with run A found."""

    tolerance: float
    of: str
    """mean or median, of each run's steps."""
    matches: list[Match]
    """The configurations and phases that both runs measured."""
    only_in_one: list[str]
    """What only one of the runs has or counts, a line each."""
    steps: list[Compared]
    groups: list[ComparedGroup]
    losses_compared: int
    losses_apart: list[str]
    """A line for each cell that learns something else in B."""

    @property
    def slower_steps(self) -> list[Compared]:
        return [row for row in self.steps if row.verdict(self.tolerance) == SLOWER]

    @property
    def slower_groups(self) -> list[ComparedGroup]:
        return [row for row in self.groups if row.shown_by(self.tolerance) is not None]

    @property
    def with_interval(self) -> int:
        """Configurations and phases whose ratio has an interval."""
        return sum(row.ratio.low is not None for row in self.steps)


def compare_runs(
    root_a: Path, root_b: Path, tolerance: float = TOLERANCE, of: str = "mean"
) -> tuple[RunData, RunData, Comparison]:
    """Load and compare two run folders.

    Raises InputError for a path that is no run folder, for one folder twice, a negative tolerance,
    another average than mean and median, and for runs without a common measured configuration.
    """
    if not (math.isfinite(tolerance) and tolerance >= 0.0):
        raise InputError("--tolerance", None, f"{tolerance:g}", "a share such as 0.02, or 0")
    if of not in AVERAGES:
        raise InputError("--of", None, repr(of), " or ".join(AVERAGES))
    if root_a.resolve() == root_b.resolve():
        raise InputError(root_b, None, "the same folder twice", "two runs")
    a, b = load_run(root_a), load_run(root_b)
    found, only_in_one = match_runs(a, b)
    matches = [match for match in found if match.a.step_times and match.b.step_times]
    if not matches:
        words = f"no configuration that it and {root_a} both measured; {nearest_difference(a, b)}"
        raise InputError(root_b, "cells", words, "two runs of one sweep")
    compared, apart = compare_losses(a, b)
    comparison = Comparison(
        tolerance,
        of,
        matches,
        only_in_one,
        _ratios([_step_pair(match) for match in matches], of),
        _compare_groups(matches, group_seconds(a), group_seconds(b), of),
        compared,
        apart,
    )
    return a, b, comparison


def _step_pair(match: Match) -> Pair:
    a, b = (Sample(one.step_times, match.repeats(one)) for one in (match.a, match.b))
    return Pair(match.name, match.phase, "step", a, b)


def _ratios(pairs: Sequence[Pair], of: str, *, among: int | None = None) -> list[Compared]:
    """The ratio of each pair, with intervals that hold together; `among` is how many there are."""
    count = sum(pair.has_interval for pair in pairs) if among is None else among
    confidence = 1.0 - (1.0 - CONFIDENCE) / max(1, count)
    found = []
    for pair in pairs:
        ratio = pair.b.over(pair.a, of=of, confidence=confidence, by_ranks=True)
        found.append(Compared(pair, ratio))
    return found


def seconds_of(sample: Sample, of: str) -> float:
    """The mean over runs of their means or medians."""
    return (sample.mean if of == "mean" else sample.median).value


def group_seconds(run: RunData) -> Seconds:
    """Seconds of groups of layers in profiled training steps."""
    times = run.layer_times[(run.layer_times["phase"] == "train").to_numpy()]
    seconds = times["forward_s"] + times["backward_s"]
    keys = [times[name] for name in ("cell", "group", "step")]
    by_step = seconds.groupby(keys, observed=True).sum()
    found = {}
    for key, part in by_step.groupby(level=["cell", "group"], observed=True):
        cell, group = cast(tuple[str, str], key)
        found[str(cell), str(group)] = part.to_numpy()
    return found


def _compare_groups(
    matches: Sequence[Match], a: Seconds, b: Seconds, of: str
) -> list[ComparedGroup]:
    """Each group that both runs recorded; all intervals of slower groups hold together.

    Relative seconds are compared by medians, as one slow moment falls upon one group.
    """
    pairs = _group_pairs(matches, a, b)
    relative = _group_pairs(matches, _over_others(a), _over_others(b))
    others = _group_pairs(matches, _seconds_of_others(a), _seconds_of_others(b))
    among = sum(pair.has_interval for pair in (*pairs, *relative))
    by_group = {(r.name, r.pair.what): r for r in _ratios(relative, "median", among=among)}
    others_by_group = {(row.name, row.pair.what): row for row in _ratios(others, of)}
    return [
        ComparedGroup(row, by_group.get(key), others_by_group.get(key))
        for row in _ratios(pairs, of, among=among)
        for key in [(row.name, row.pair.what)]
    ]


def _group_pairs(matches: Sequence[Match], a: Seconds, b: Seconds) -> list[Pair]:
    return [
        Pair(
            match.name,
            match.phase,
            group,
            Sample([a[str(cell), group] for cell in match.a.used["cell"]], match.repeats(match.a)),
            Sample([b[str(cell), group] for cell in match.b.used["cell"]], match.repeats(match.b)),
        )
        for match in matches
        if match.phase == "train"
        for group in sorted(_common_groups(match.a, a) & _common_groups(match.b, b))
    ]


def _common_groups(one: Configuration, seconds: Seconds) -> set[str]:
    """The groups that every cell of a configuration recorded."""
    used = set(one.used["cell"].astype(str))
    by_cell: dict[str, set[str]] = {cell: set() for cell in used}
    for cell, group in seconds:
        if cell in used:
            by_cell[cell].add(group)
    return set.intersection(*by_cell.values()) if by_cell else set()


def _seconds_of_others(seconds: Seconds) -> Seconds:
    """For each group the seconds of the cell's other groups in the same steps.

    Only of cells with two groups or more, each in every step.
    """
    by_cell: dict[str, dict[str, NDArray[np.float64]]] = {}
    for (cell, group), values in seconds.items():
        by_cell.setdefault(cell, {})[group] = values
    return {
        (cell, group): np.sum(list(groups.values()), axis=0) - mine
        for cell, groups in by_cell.items()
        if len(groups) > 1 and len({values.size for values in groups.values()}) == 1
        for group, mine in groups.items()
    }


def _over_others(seconds: Seconds) -> Seconds:
    others = _seconds_of_others(seconds)
    return {key: seconds[key] / other for key, other in others.items() if (other > 0.0).all()}


def steps_frame(rows: Sequence[Compared], tolerance: float, of: str = "mean") -> pd.DataFrame:
    """One row a comparison: seconds in A and in B, the ratio, its interval and the verdict."""
    return pd.DataFrame(
        [
            {
                "cell": row.name,
                "phase": row.pair.phase,
                "what": row.pair.what,
                "runs": f"{len(row.pair.a.runs)}, {len(row.pair.b.runs)}",
                "a_s": seconds_of(row.pair.a, of),
                "b_s": seconds_of(row.pair.b, of),
                "b_over_a": row.ratio.value,
                "low": row.ratio.low,
                "high": row.ratio.high,
                "from": row.ratio.basis if row.ratio.low is not None else "",
                "verdict": row.verdict(tolerance),
            }
            for row in rows
        ]
    )


def groups_frame(rows: Sequence[ComparedGroup], tolerance: float, of: str) -> pd.DataFrame:
    """One row a group of layers: as `steps_frame`, with the ratio of relative seconds."""
    frame = steps_frame([row.seconds for row in rows], tolerance, of)
    if frame.empty:
        return frame
    ratios = [row.relative.ratio if row.relative else None for row in rows]
    frame["relative"] = [ratio.value if ratio else None for ratio in ratios]
    frame["relative_low"] = [ratio.low if ratio else None for ratio in ratios]
    frame["relative_high"] = [ratio.high if ratio else None for ratio in ratios]
    frame["verdict"] = [row.verdict(tolerance) for row in rows]
    return frame
