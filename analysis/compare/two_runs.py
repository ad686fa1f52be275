"""Compares two runs cell by cell, and says which became slower."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from analysis.compare.compared_groups import ComparedGroup, compare_groups
from analysis.compare.layer_groups import group_seconds
from analysis.compare.matched import Match, match_runs
from analysis.compare.ratios import SLOWER, Compared, Pair, compare_pairs
from analysis.compare.unlike_facts import copied_line, flag_lines, unlike_lines
from analysis.loading.equal_cells import Losses, compare_losses
from analysis.loading.run import load
from analysis.stats.intervals import Sample
from gnnhpc.core.errors import InputError

TOLERANCE = 0.02
"""Slower by no more than this is tolerated unless told otherwise."""
AVERAGES = ("mean", "median")


@dataclass(frozen=True)
class Comparison:
    """What comparing run B with run A found."""

    tolerance: float
    of: str
    """mean or median, of each run's steps."""
    steps: list[Compared]
    """One a configuration and phase that both runs have."""
    groups: list[ComparedGroup]
    """One a configuration and group of layers, in training."""
    losses: Losses
    differs: list[str]
    """What the runs differ in besides settings, a line each."""
    beware: list[str]
    """What makes the cells that are compared tell less: copies and flags, a line each."""
    alone: list[str]
    """What only one of the runs has or counts, a line each."""

    @property
    def slower_steps(self) -> list[Compared]:
        return [row for row in self.steps if row.verdict(self.tolerance) == SLOWER]

    @property
    def slower_groups(self) -> list[ComparedGroup]:
        return [row for row in self.groups if row.shown_by(self.tolerance) is not None]

    @property
    def anything_slower(self) -> bool:
        """Whether a step or a group of layers is shown to be slower than is tolerated."""
        return bool(self.slower_steps or self.slower_groups)

    @property
    def judged(self) -> int:
        """Configurations and phases whose interval exists."""
        return sum(row.ratio.low is not None for row in self.steps)


def compare_runs(
    root_a: Path, root_b: Path, tolerance: float = TOLERANCE, of: str = "mean"
) -> Comparison:
    """Load and compare two run folders; B is the one that may have become slower.

    Raises InputError for a path that is no run folder, for one folder twice, a negative tolerance,
    another average than mean and median, and for runs without a common configuration that both
    measured.
    """
    if not (math.isfinite(tolerance) and tolerance >= 0.0):
        raise InputError("--tolerance", None, f"{tolerance:g}", "a share such as 0.02, or 0")
    if of not in AVERAGES:
        raise InputError("--of", None, repr(of), " or ".join(AVERAGES))
    if root_a.resolve() == root_b.resolve():
        raise InputError(root_b, None, "the same folder twice", "two runs")
    a, b = load(root_a), load(root_b)
    found = match_runs(a, b)
    pairs = [match for match in found.pairs if match.a.step_times and match.b.step_times]
    if not pairs:
        raise InputError(
            root_b,
            "cells",
            f"no configuration that it and {root_a} both measured",
            "two runs of one sweep",
        )
    return Comparison(
        tolerance,
        of,
        compare_pairs([_steps(match) for match in pairs], of),
        compare_groups(pairs, group_seconds(a), group_seconds(b), of),
        compare_losses(a, b),
        list(unlike_lines(a, b, pairs)),
        [*copied_line(a, b), *flag_lines(pairs)],
        found.alone,
    )


def _steps(match: Match) -> Pair:
    a, b = (Sample(one.step_times, match.repeats(one)) for one in (match.a, match.b))
    return Pair(match.name, match.phase, "step", a, b)
