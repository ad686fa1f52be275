"""Intervals of step times: what they hold, what they come from, and where there are none."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.statistics.intervals import (
    FEW_STEPS,
    ONE_RUN,
    Interval,
    interval_of_runs,
    interval_of_shares,
    median,
    ratio_in_words,
    ratio_of_pairs,
    ratio_of_runs,
    welch_bounds,
)
from analysis.statistics.pairs import Repeat, paired
from analysis.statistics.sample import Sample

seconds = st.floats(min_value=1e-3, max_value=1e3)
series = st.lists(seconds, min_size=3, max_size=40)


@given(st.lists(series, min_size=2, max_size=4))
@settings(max_examples=40, deadline=None)
def test_intervals_hold_their_value(runs: list[list[float]]) -> None:
    sample = Sample(runs)
    for interval in (sample.mean, sample.median):
        assert interval.low is not None
        assert interval.high is not None
        assert 0.0 < interval.low <= interval.value <= interval.high


@given(st.lists(series, min_size=2, max_size=3), st.floats(min_value=0.1, max_value=10))
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


def test_a_run_is_one_observation_whatever_its_steps() -> None:
    """Student's interval of three logarithms by hand: t of 2 degrees is 4.302653."""
    means = [9.0, 10.0, 11.5]
    logs = np.log(means)
    reach = 4.302653 * logs.std(ddof=1) / math.sqrt(3)
    expected = math.exp(logs.mean() - reach), math.exp(logs.mean() + reach)
    for steps in (5, 50):
        found = Sample([[mean] * steps for mean in means]).mean
        assert found.value == pytest.approx(np.mean(means))
        assert (found.low, found.high) == pytest.approx(expected, rel=1e-6)
        assert found.basis == "3 runs"


def test_medians_are_of_runs() -> None:
    runs = [[1.0, 1.0, 9.0], [2.0, 2.0, 9.0], [3.0, 3.0, 30.0]]
    assert Sample(runs).median == interval_of_runs([1.0, 2.0, 3.0])


def test_a_ratio_of_pairs_is_free_of_what_they_share() -> None:
    machine = np.array([1.0, 1.5, 2.0])
    noise = np.array([1.01, 1.0, 0.99])
    found = ratio_of_pairs(2.0 * machine, machine * noise)
    assert found.basis == "3 pairs"
    assert found.value == pytest.approx(2.0, rel=1e-3)
    assert found.half_width is not None and found.half_width < 0.06
    alone = ratio_of_runs(2.0 * machine, machine * noise)
    assert alone.basis == "3 and 3 runs"
    assert alone.half_width is not None and alone.half_width > 1.0


def test_welchs_interval_is_scipys() -> None:
    from scipy.stats import ttest_ind

    one, other = np.array([1.0, 1.2, 0.9]), np.array([2.0, 2.6, 1.9, 2.2, 2.3])
    expected = ttest_ind(one, other, equal_var=False).confidence_interval(0.95)
    assert np.allclose(welch_bounds(one, other), (expected.low, expected.high))


def test_equal_runs_have_an_interval_of_no_width() -> None:
    assert interval_of_runs([2.0, 2.0]) == Interval(2.0, 2.0, 2.0)
    ratio = ratio_of_runs(np.array([2.0, 2.0]), np.array([1.0, 1.0]), 3.0)
    assert (ratio.low, ratio.high) == pytest.approx((6.0, 6.0))


def test_shares_stay_shares() -> None:
    found = interval_of_shares([0.0, 0.1])
    assert (found.low, found.value, found.high) == (0.0, 0.05, pytest.approx(0.05 + 12.7062 * 0.05))
    assert interval_of_shares([0.9, 1.0]).high == 1.0
    assert interval_of_shares([0.3]).low is None
    assert interval_of_shares([0.3, 0.4], steps=4) == Interval(0.35, None, None)
    assert interval_of_shares([0.3, 0.4], steps=5).low is not None


STEPS = [1.0, 1.1, 0.9, 1.0, 1.05, 1.0]


def test_one_run_has_no_interval() -> None:
    alone, several = Sample([STEPS]), Sample([STEPS, STEPS, STEPS])
    assert (alone.mean.low, alone.median.high) == (None, None)
    assert alone.mean.basis == ONE_RUN
    for ratio in (alone.mean_over(several), several.mean_over(alone), alone.median_over(several)):
        assert (ratio.value, ratio.low) == (pytest.approx(1.0), None)
        assert ONE_RUN in ratio_in_words(ratio)
    assert Sample([STEPS, []]).mean.low is None, "a run without steps is none"


def test_fewer_than_five_steps_have_no_interval() -> None:
    few, enough = Sample([[1.0, 1.1], [1.2, 1.3]]), Sample([[1.0, 1.1], [1.2, 1.3, 1.4]])
    assert (few.mean.low, few.mean.basis) == (None, FEW_STEPS)
    assert enough.mean.low is not None
    assert enough.mean_over(few).basis == FEW_STEPS


def test_nothing_has_no_value() -> None:
    assert math.isnan(Sample([]).mean.value)
    assert math.isnan(Sample([[]]).median.value)
    assert math.isnan(Sample([]).mean_over(Sample([STEPS])).value)


def test_missing_values_are_left_out() -> None:
    assert Sample([[1.0, math.nan, 3.0]]).mean.value == 2.0


A, B = frozenset({"a"}), frozenset({"b"})


def test_runs_of_one_repeat_and_machine_belong_together() -> None:
    mine = [Repeat(0, number, A) for number in range(4)]
    theirs = [Repeat(0, number, A | B) for number in (3, 2, 0)]
    assert paired(mine, theirs) == [(0, 2), (2, 1), (3, 0)]
    assert paired(mine, [Repeat(1, number, A) for number in range(4)]) == []
    assert paired(mine, [Repeat(0, number, B) for number in range(4)]) == []
    assert paired(mine[:2], theirs) == []
    many = [Repeat(0, number, A) for number in range(7)]
    assert paired(many, theirs) == [], "most runs have no partner"
    assert paired([], []) == []


def test_one_run_is_in_one_pair() -> None:
    twice = [Repeat(0, 0, A)] * 2
    assert paired([*twice, Repeat(0, 1, A)], [Repeat(0, 0, A), Repeat(0, 1, A)]) == []


@pytest.mark.parametrize(
    ("interval", "words"),
    [
        (Interval(1.5, 1.4, 1.6), "faster: 1.500 (1.400 to 1.600)"),
        (Interval(0.5, 0.4, 0.6), "slower: 0.500 (0.400 to 0.600)"),
        (Interval(1.1, 1.0003, 1.2), "faster: 1.1000 (1.0003 to 1.2000)"),
        (Interval(0.95, 0.9, 0.99996), "slower: 0.95000 (0.90000 to 0.99996)"),
        (Interval(1.1, 0.9997, 1.2), "no difference shown: 1.1000 (0.9997 to 1.2000) contains 1"),
        (Interval(1e-5, 0.0, 2e-5), "slower: 0.00001 (0.00000 to 0.00002)"),
        (Interval(1.02, 0.98, 1.05), "no difference shown: 1.020 (0.980 to 1.050) contains 1"),
        (
            Interval(1.5, None, None),
            "1.500 times, no interval: one run says nothing about how runs differ",
        ),
        (Interval(1.5, None, None, FEW_STEPS), "1.500 times, no interval: fewer than 5 steps"),
    ],
)
def test_small_effects_are_reported_as_such(interval: Interval, words: str) -> None:
    assert ratio_in_words(interval) == words


def test_the_ends_belong_to_an_interval() -> None:
    interval = Interval(1.0, 0.9, 1.1)
    assert [interval.excludes(x) for x in (0.89, 0.9, 1.0, 1.1, 1.11)] == [True, *[False] * 3, True]
    assert interval.half_width == pytest.approx(0.1)


@pytest.mark.parametrize("bounds", [(None, None), (None, 1.1), (0.9, None)])
def test_half_an_interval_is_none(bounds: tuple[float | None, float | None]) -> None:
    interval = Interval(1.0, *bounds)
    assert not interval.excludes(5.0)
    assert interval.half_width is None
    assert ratio_in_words(interval) == f"1.000 times, no interval: {ONE_RUN}"


def test_a_time_of_zero_has_no_logarithm_and_no_interval() -> None:
    """The value is no time, and is reported without bounds."""
    assert interval_of_runs([0.0, 1.0]) == Interval(0.5, None, None)
    assert interval_of_runs([0.0, 1.0]).basis == "a time of zero"
    ratio = ratio_of_runs(np.array([0.0, 1.0]), np.array([2.0, 2.0]))
    assert (ratio, ratio.basis) == (Interval(0.25, None, None), "a time of zero")


def test_ratios_are_of_geometric_means_and_unscaled_unless_asked() -> None:
    quarter, one = np.array([0.25, 1.0]), np.array([1.0, 1.0])
    assert ratio_of_runs(quarter, one).value == pytest.approx(0.5)
    assert ratio_of_pairs(quarter, one).value == pytest.approx(0.5)
    assert ratio_of_runs(quarter, one, 3.0).value == pytest.approx(1.5)


def test_no_runs_have_no_steps() -> None:
    assert Sample([]).values.shape == (0,)
