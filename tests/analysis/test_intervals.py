"""Intervals of step times: what they hold, how often, and how wide they are."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from analysis.stats.intervals import Interval, Sample, block_length, median, ratio_in_words
from analysis.stats.step_times import effective_n

seconds = st.floats(min_value=1e-3, max_value=1e3)
series = st.lists(seconds, min_size=2, max_size=40)


def correlated(n: int, strength: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """An AR(1) series around 10."""
    values = np.empty(n)
    values[0] = rng.normal()
    for i in range(1, n):
        values[i] = strength * values[i - 1] + rng.normal() * math.sqrt(1 - strength**2)
    return 10 + values


@given(st.lists(series, min_size=1, max_size=4))
@settings(max_examples=40, deadline=None)
def test_intervals_hold_their_value_and_stay_within_the_data(runs: list[list[float]]) -> None:
    sample = Sample(runs)
    pooled = [value for run in runs for value in run]
    for interval in (sample.mean, sample.median):
        assert interval.low is not None
        assert interval.high is not None
        assert interval.low <= interval.value <= interval.high
        assert min(pooled) * (1 - 1e-9) <= interval.low
        assert interval.high <= max(pooled) * (1 + 1e-9)


@given(st.lists(series, min_size=1, max_size=3), st.floats(min_value=0.1, max_value=10))
@settings(max_examples=25, deadline=None)
def test_intervals_scale_with_their_values(runs: list[list[float]], factor: float) -> None:
    one = Sample(runs).mean
    other = Sample([[factor * value for value in run] for run in runs]).mean
    assert other.value == pytest.approx(factor * one.value)
    assert other.low == pytest.approx(factor * (one.low or 0.0), rel=1e-6)
    assert other.high == pytest.approx(factor * (one.high or 0.0), rel=1e-6)


@given(series)
@settings(max_examples=40, deadline=None)
def test_the_median_is_numpys(values: list[float]) -> None:
    assert median(np.array(values)) == pytest.approx(float(np.median(values)))


def test_the_same_seed_gives_the_same_interval_and_another_another() -> None:
    rng = np.random.default_rng(3)
    runs = [rng.normal(10, 1, 30)]
    assert Sample(runs, seed=5).mean == Sample(runs, seed=5).mean
    assert Sample(runs, seed=5).mean != Sample(runs, seed=6).mean


@pytest.mark.parametrize(
    ("runs", "n", "strength", "least"),
    [(1, 100, 0.0, 0.90), (1, 200, 0.5, 0.85), (3, 50, 0.0, 0.93), (5, 40, 0.3, 0.93)],
)
def test_intervals_cover_as_often_as_they_say(
    runs: int, n: int, strength: float, least: float
) -> None:
    """Of 200 series of known mean and median, at 95 % by name."""
    rng = np.random.default_rng(11)
    covered = {"mean": 0, "median": 0}
    for trial in range(200):
        sample = Sample([correlated(n, strength, rng) for _ in range(runs)], seed=trial)
        covered["mean"] += not sample.mean.excludes(10.0)
        covered["median"] += not sample.median.excludes(10.0)
    assert covered["mean"] >= least * 200
    assert covered["median"] >= least * 200


def test_runs_that_differ_widen_the_interval() -> None:
    """What steps alone cannot tell: two runs that agree within and differ between."""
    rng = np.random.default_rng(0)
    low, high = rng.normal(10.0, 0.1, 50), rng.normal(11.0, 0.1, 50)
    between = Sample([low, high]).mean
    within = Sample([np.concatenate([low, high])[rng.permutation(100)]]).mean
    assert between.half_width is not None
    assert within.half_width is not None
    assert between.half_width > 3 * within.half_width


def test_correlated_steps_widen_the_interval() -> None:
    rng = np.random.default_rng(1)
    values = correlated(400, 0.9, rng)
    shuffled = values[rng.permutation(400)]
    ordered, loose = Sample([values]).mean, Sample([shuffled]).mean
    assert ordered.half_width is not None
    assert loose.half_width is not None
    assert ordered.half_width > 2 * loose.half_width
    assert block_length(values) > block_length(shuffled)
    assert effective_n(values) < 0.3 * 400


def test_alternating_steps_do_not_pass_for_surer_ones() -> None:
    assert block_length([10.0, 11.0] * 50) == 1


def test_speedup_intervals_hold_the_true_ratio() -> None:
    rng = np.random.default_rng(2)
    held = 0
    for trial in range(100):
        slow = Sample([rng.normal(20, 1, 30) for _ in range(2)], seed=2 * trial)
        fast = Sample([rng.normal(10, 1, 30) for _ in range(2)], seed=2 * trial + 1)
        held += not slow.mean_over(fast).excludes(2.0)
        assert slow.mean_over(fast, 3.0).value == pytest.approx(3 * slow.mean_over(fast).value)
    assert held >= 90


def test_one_value_has_no_interval_and_none_no_value() -> None:
    assert Sample([[3.0]]).mean == Interval(3.0, None, None)
    assert math.isnan(Sample([]).mean.value)
    assert math.isnan(Sample([[]]).median.value)
    assert Sample([[3.0]]).mean_over(Sample([[1.5, 1.5]])).value == 2.0
    assert Sample([[3.0]]).mean_over(Sample([[1.5, 1.5]])).low is None


def test_missing_values_are_left_out() -> None:
    assert Sample([[1.0, math.nan, 3.0]]).mean.value == 2.0


@pytest.mark.parametrize(
    ("interval", "words"),
    [
        (Interval(1.5, 1.4, 1.6), "faster: 1.500 (1.400 to 1.600)"),
        (Interval(0.5, 0.4, 0.6), "slower: 0.500 (0.400 to 0.600)"),
        (Interval(1.02, 0.98, 1.05), "no difference shown: 1.020 (0.980 to 1.050) contains 1"),
        (Interval(1.5, None, None), "1.500 times, one measurement: no interval"),
    ],
)
def test_small_effects_are_told_as_such(interval: Interval, words: str) -> None:
    assert ratio_in_words(interval) == words
