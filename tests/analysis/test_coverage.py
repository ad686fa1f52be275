"""How often intervals hold the truth, and how often equal things are called different."""

from __future__ import annotations

import math

import numpy as np
from scipy.stats import norm

from benchmarks.interval_coverage import GROUPS, NOISES, STUDIES, Share, coverage, false_effects

GOAL = (0.93, 0.97)


def margin(share: float, compared: int) -> float:
    """How far a share of studies may fall from its expectation.

    So that one seed in a thousand would fail by chance: 3.3 standard deviations of a binomial for
    one share, and by Bonferroni for more.
    """
    return float(norm.isf(0.0005 / compared)) * math.sqrt(share * (1.0 - share) / STUDIES)


def shares(*runs: int) -> list[Share]:
    sizes = {"runs": runs, "steps": (10, 40), "spreads": (0.0, 0.05)}
    cases = [(noise, correlation) for noise in NOISES for correlation in (0.0, 0.7)]
    return [share for case in cases for share in coverage(*case, **sizes, seed=7)]


def test_intervals_of_three_runs_or_more_hold_as_often_as_they_say() -> None:
    found = shares(3, 5)
    assert {one.of for one in found} == {"mean", "median", "speedup, pairs", "speedup, unpaired"}
    low, high = GOAL
    low, high = low - margin(low, len(found)), high + margin(high, len(found))
    assert not [one for one in found if not low <= one.share <= high]


def test_intervals_of_two_runs_hold_too() -> None:
    """They are wide, not wrong; two that differ beside two that do not hold least."""
    found = shares(2)
    assert min(one.share for one in found) >= 0.92 - margin(0.92, len(found))


def test_equal_runs_are_seldom_called_different() -> None:
    logs = {"mean": np.random.default_rng(1).standard_normal(20)}
    found = list(false_effects(logs, splits=4_000))
    ways = [(repeats, way) for repeats in GROUPS for way in ("pairs", "groups (Welch)")]
    assert [(one.runs, one.kind) for one in found] == ways
    # Splits of the same twenty runs are no independent draws, so the share has no binomial margin.
    assert all(0.01 < one.share < 0.09 for one in found)
