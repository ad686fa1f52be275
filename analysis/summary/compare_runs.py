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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from analysis.load.equivalent_cells import compare_losses, valid_trajectories
from analysis.load.run_data import RunData, load_run
from analysis.statistics.intervals import FEWEST_STEPS, Interval, repeats_in_words
from analysis.statistics.power import CONFIDENCE
from analysis.statistics.sample import Sample
from analysis.summary.match_runs import Match, match_runs
from gnnhpc.core.errors import InputError

TOLERANCE = 0.02
"""The default share by which B may be slower."""
AVERAGES = ("mean", "median")
SLOWER = "slower"
SLOWER_RELATIVELY = "slower relative to the other layers of the same steps"


@dataclass(frozen=True)
class Compared:
    """Seconds of one thing in both runs, with the ratio of B over A.

    The ratio has no bounds where runs are too few.
    """

    name: str
    """The configuration's."""
    phase: str
    what: str
    """`step`, or the name of a group of layers."""
    a: Sample
    b: Sample
    ratio: Interval

    def verdict(self, tolerance: float) -> str:
        """The verdict in words; with one run a side, the reason why there is none."""
        low, high = self.ratio.low, self.ratio.high
        if low is None or high is None:
            return self.ratio.basis
        if low > 1.0:
            beyond = low > 1.0 + tolerance
            return SLOWER if beyond else "slower, not shown to be beyond the tolerance"
        if high < 1.0:
            return "faster"
        return f"no difference shown{repeats_in_words(self.ratio)}"


@dataclass(frozen=True)
class ComparedGroup:
    """One group of layers of a configuration, in training."""

    seconds: Compared
    relative: Compared | None
    """Seconds over those of the other groups of the same step; None where there are no others."""
    others: Compared | None
    """Seconds of the other groups."""

    def shown_by(self, tolerance: float) -> Compared | None:
        """What shows the group slower than is tolerated: its seconds, or its relative seconds.

        Relative seconds count only where the group's seconds are larger too, and the others' are
        not shown to be smaller.
        """
        if self.seconds.verdict(tolerance) == SLOWER:
            return self.seconds
        if self.relative is None or self.others is None or self.seconds.ratio.value <= 1.0:
            return None
        others_are_faster = self.others.ratio.high is not None and self.others.ratio.high < 1.0
        shown = self.relative.verdict(tolerance) == SLOWER and not others_are_faster
        return self.relative if shown else None

    def verdict(self, tolerance: float) -> str:
        shown = self.shown_by(tolerance)
        relatively = shown is not None and shown is self.relative
        return SLOWER_RELATIVELY if relatively else self.seconds.verdict(tolerance)


@dataclass(frozen=True)
class Comparison:
    """What comparing run B with run A found."""

    a: RunData
    b: RunData
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


def compare_runs(
    root_a: Path, root_b: Path, tolerance: float = TOLERANCE, of: str = "mean"
) -> Comparison:
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
    matches, only_in_one = match_runs(a, b)
    steps = [
        Pair(match, "step", *(Sample(one.step_times, match.repeats(one)) for one in match.sides))
        for match in matches
    ]
    groups = _compare_groups(matches, [_group_seconds(a), _group_seconds(b)], of)
    found_steps = _ratios(steps, of)
    losses = compare_losses(*(valid_trajectories(run.ranks, run.cells) for run in (a, b)))
    return Comparison(a, b, tolerance, of, matches, only_in_one, found_steps, groups, *losses)


class Pair(NamedTuple):
    """Seconds of one thing in both runs."""

    match: Match
    what: str
    a: Sample
    b: Sample

    @property
    def has_interval(self) -> bool:
        both = (self.a, self.b)
        return all(len(one.runs) > 1 and one.values.size >= FEWEST_STEPS for one in both)


def _ratios(pairs: Sequence[Pair], of: str, among: int | None = None) -> list[Compared]:
    """The ratio of each pair, with intervals that hold together; `among` is how many there are."""
    count = sum(pair.has_interval for pair in pairs) if among is None else among
    confidence = 1.0 - (1.0 - CONFIDENCE) / max(1, count)
    return [
        Compared(
            *(match.name, match.phase, what, a, b),
            b.over(a, of=of, confidence=confidence, by_ranks=True),
        )
        for match, what, a, b in pairs
    ]


def seconds_of(sample: Sample, of: str) -> float:
    """The mean over runs of their means or medians."""
    return (sample.mean if of == "mean" else sample.median).value


def _group_seconds(run: RunData) -> pd.DataFrame:
    """A row a cell and profiled training step: seconds of each group of layers, over all ranks."""
    times = run.layer_times[(run.layer_times["phase"] == "train").to_numpy()]
    keys = [times["cell"].astype(str), times["step"], times["group"].astype(str)]
    return (times["forward_s"] + times["backward_s"]).groupby(keys).sum().unstack("group")


def _compare_groups(
    matches: Sequence[Match], seconds: Sequence[pd.DataFrame], of: str
) -> list[ComparedGroup]:
    """Each group that both runs recorded; all intervals of slower groups hold together.

    Relative seconds are compared by medians, as one slow moment falls upon one group.
    """

    def pairs_of(change: Callable[[pd.DataFrame], pd.DataFrame]) -> list[Pair]:
        train = (match for match in matches if match.phase == "train")
        return [pair for match in train for pair in _common_groups(match, seconds, change)]

    pairs = pairs_of(lambda seconds: seconds)
    relative = pairs_of(lambda seconds: seconds / _of_others(seconds))
    among = sum(pair.has_interval for pair in (*pairs, *relative))
    by_group = {(r.name, r.what): r for r in _ratios(relative, "median", among)}
    others = {(r.name, r.what): r for r in _ratios(pairs_of(_of_others), of)}
    return [
        ComparedGroup(row, by_group.get((row.name, row.what)), others.get((row.name, row.what)))
        for row in _ratios(pairs, of, among)
    ]


def _of_others(seconds: pd.DataFrame) -> pd.DataFrame:
    """For each group the seconds of the other groups in the same step; nan where one is missing."""
    others = -seconds.sub(seconds.sum(axis=1, skipna=False), axis=0)
    return others.where(others > 0.0)


def _common_groups(
    match: Match,
    seconds: Sequence[pd.DataFrame],
    change: Callable[[pd.DataFrame], pd.DataFrame],
) -> list[Pair]:
    """The groups that every cell of both configurations recorded."""
    sides = []
    for one, recorded in zip(match.sides, seconds, strict=True):
        cells = [str(cell) for cell in one.used["cell"]]
        if not set(cells) <= set(recorded.index.get_level_values("cell")):
            return []
        parts = (recorded.loc[[cell]].dropna(axis=1, how="all") for cell in cells)
        sides.append([change(part) for part in parts])
    complete = (set(cell.columns[cell.notna().all()]) for cells in sides for cell in cells)
    return [
        Pair(
            *(match, group),
            *(
                Sample([cell[group].to_numpy() for cell in cells], match.repeats(one))
                for one, cells in zip(match.sides, sides, strict=True)
            ),
        )
        for group in sorted(set.intersection(*complete))
    ]


def steps_frame(rows: Sequence[Compared], tolerance: float, of: str = "mean") -> pd.DataFrame:
    """One row a comparison: seconds in A and in B, the ratio, its interval and the verdict."""
    return pd.DataFrame(
        [
            {
                "cell": row.name,
                "phase": row.phase,
                "what": row.what,
                "runs": f"{len(row.a.runs)}, {len(row.b.runs)}",
                "a_s": seconds_of(row.a, of),
                "b_s": seconds_of(row.b, of),
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
    ratios = [row.relative.ratio if row.relative else None for row in rows]
    for name, end in (("relative", "value"), ("relative_low", "low"), ("relative_high", "high")):
        frame[name] = pd.Series([getattr(ratio, end, None) for ratio in ratios], dtype=float)
    frame["verdict"] = [row.verdict(tolerance) for row in rows]
    return frame
