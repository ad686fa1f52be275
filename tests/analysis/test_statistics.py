"""Statistics of step times by their properties: intervals, pairs, ratios, warm-up, outliers."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ttest_1samp, ttest_ind

from analysis.statistics.find_warmup_end import (
    detect_warmup,
    drift,
    mark_outliers,
    robust_std,
)
from analysis.statistics.intervals import (
    FEW_STEPS,
    ONE_RUN,
    Interval,
    interval_of_shares,
    ratio_in_words,
    ratio_of_pairs,
    ratio_of_runs,
    repeats_to_show,
    signed_rank_interval,
    t_bounds,
    t_quantile,
    welch_bounds,
)
from analysis.statistics.sample import Repeat, Sample, paired, skewness_of_means

seconds = st.floats(min_value=1e-3, max_value=1e3)
series = st.lists(seconds, min_size=5, max_size=40)
several = st.lists(series, min_size=2, max_size=4)
differences = st.lists(st.floats(-5, 5), min_size=6, max_size=30)
few = settings(max_examples=40, deadline=None)


@given(several, st.floats(0.1, 10))
@few
def test_an_interval_holds_its_value_and_scales_with_it(
    runs: list[list[float]], factor: float
) -> None:
    one, other = Sample(runs), Sample([[factor * value for value in run] for run in runs])
    for mine, scaled in ((one.mean, other.mean), (one.median, other.median)):
        assert mine.low is not None and mine.high is not None
        assert 0.0 < mine.low <= mine.value <= mine.high
        assert (scaled.low, scaled.value, scaled.high) == pytest.approx(
            (factor * mine.low, factor * mine.value, factor * mine.high), rel=1e-6
        )


@given(st.lists(seconds, min_size=2, max_size=9, unique=True))
@few
def test_a_run_is_one_observation_of_students_t_on_logarithms(means: list[float]) -> None:
    expected = ttest_1samp(np.log(means), 0.0).confidence_interval(0.95)
    bounds = t_bounds(np.log(means))
    assert bounds == pytest.approx((expected.low, expected.high))
    found = Sample([[mean] * 9 for mean in means]).median
    value = float(np.mean(means))
    assert found.low == pytest.approx(min(math.exp(expected.low), value))
    assert found.high == pytest.approx(max(math.exp(expected.high), value))


@given(st.lists(seconds, min_size=2, max_size=9), st.lists(seconds, min_size=3, max_size=9))
@few
def test_unpaired_runs_are_compared_by_welch(one: list[float], other: list[float]) -> None:
    if np.ptp(one) == 0.0 or np.ptp(other) == 0.0:
        return
    expected = ttest_ind(one, other, equal_var=False).confidence_interval(0.95)
    assert np.allclose(welch_bounds(one, other), (expected.low, expected.high), rtol=1e-5)


@given(st.lists(seconds, min_size=3, max_size=9), st.floats(0.5, 2.0))
@few
def test_a_ratio_of_pairs_is_free_of_what_they_share(machine: list[float], factor: float) -> None:
    hour = np.array(machine)
    found = ratio_of_pairs(factor * hour, hour)
    assert (found.low, found.value, found.high) == pytest.approx((factor,) * 3)
    assert ratio_of_runs(factor * hour, hour).value == pytest.approx(factor)
    assert found.basis == f"{len(machine)} pairs"


def test_signed_ranks_of_six_pairs_are_those_of_all_signs_tried() -> None:
    """Of 64 equally likely signs one has no positive rank: 1/64 a side, and no less."""
    values = np.array([0.5, 1.0, 2.0, 3.0, 5.0, 8.0])
    pairs = itertools.combinations_with_replacement(values, 2)
    centre = np.median([(a + b) / 2.0 for a, b in pairs])
    assert signed_rank_interval(values, 1.0 - 2.0 / 64.0) == (centre, 0.5, 8.0)
    assert signed_rank_interval(values, 1.0 - 1.9 / 64.0) is None


def test_two_disturbed_repeats_do_not_hide_what_sixteen_show() -> None:
    rng = np.random.default_rng(0)
    both = 1.0 + 0.01 * rng.standard_normal((2, 18))
    both[1] *= 1.05
    both[1, 3], both[0, 9] = 3.0, 2.0
    repeats = [Repeat(0, number) for number in range(18)]
    before, after = (Sample([[value] * 5 for value in side], repeats) for side in both)
    ranked = after.over(before, by_ranks=True)
    assert not after.over(before).excludes(1.0)
    assert ranked.low is not None and ranked.low > 1.03


@pytest.mark.parametrize(
    ("sample", "why"),
    [
        (Sample([[1.0] * 9]), ONE_RUN),
        (Sample([[1.0] * 9, []]), ONE_RUN),
        (Sample([[1.0, 1.1], [1.2, 1.3]]), FEW_STEPS),
        (Sample([[0.0] * 5, [1.0] * 5]), "a time of zero"),
    ],
)
def test_too_few_runs_or_steps_have_no_interval(sample: Sample, why: str) -> None:
    enough = Sample([[1.0] * 9] * 3)
    for found in (sample.mean, sample.over(enough), enough.over(sample, of="median")):
        assert (found.low, found.high, found.basis) == (None, None, why)
        assert why in ratio_in_words(found)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=9))
def test_shares_stay_shares(values: list[float]) -> None:
    found = interval_of_shares(values)
    assert found.low is not None and found.high is not None
    assert 0.0 <= found.low <= found.value <= found.high <= 1.0
    assert interval_of_shares(values, steps=4).low is None


@pytest.mark.parametrize(
    ("interval", "words"),
    [
        (Interval(1.5, 1.4, 1.6), "faster: 1.500 (1.400 to 1.600)"),
        (Interval(0.95, 0.9, 0.99), "slower: 0.950 (0.900 to 0.990)"),
        (Interval(1.02, 0.98, 1.05), "no difference shown: 1.020 (0.980 to 1.050) contains 1"),
        (Interval(1.0, None, 1.1), f"1.000 times, no interval: {ONE_RUN}"),
    ],
)
def test_small_effects_are_worded_as_such(interval: Interval, words: str) -> None:
    assert ratio_in_words(interval) == words


A, B = frozenset({"a"}), frozenset({"b"})


def test_runs_of_one_repeat_and_machine_belong_together() -> None:
    mine = [Repeat(0, number, A) for number in range(4)]
    theirs = [Repeat(0, number, A | B) for number in (3, 2, 0)]
    assert paired(mine, theirs) == [(0, 2), (2, 1), (3, 0)]
    for others in ([Repeat(1, n, A) for n in range(4)], [Repeat(0, n, B) for n in range(4)]):
        assert paired(mine, others) == []
    assert paired(mine[:2], theirs) == []
    most_without = [Repeat(0, number, A) for number in range(7)]
    assert paired(most_without, theirs) == []
    assert paired([Repeat(0, 0, A)] * 3, theirs) == [], "a run is in one pair"


def test_skewness_lengthens_the_upper_side_of_a_mean_alone() -> None:
    """At the t of 3 degrees of freedom, 3.1824, by Cornish and Fisher's term."""
    values = [1.0, 2.0, 4.0, 5.0]
    error = np.std(values, ddof=1) / 2.0
    low, high = t_bounds(values, skewness=0.6)
    assert low == pytest.approx(3.0 - 3.182446 * error, abs=1e-5)
    assert high == pytest.approx(3.0 + (3.182446 + 0.6 * (2.0 * 3.182446**2 + 1.0) / 12.0) * error)
    skewed = 1.0 + 0.03 * np.random.default_rng(5).exponential(size=(3, 50))
    assert skewness_of_means(skewed, np.asarray(0.0)) > 0.05
    for steps in (2.0 - skewed, np.ones((3, 10)), skewed[:, :4]):
        assert skewness_of_means(steps, np.asarray(0.0)) == 0.0


def test_an_outlier_is_further_off_than_others_are() -> None:
    """By 3.5 times 1.4826 times the median distance from the median, 0.1."""
    values = [0.9, 1.0, 1.1, 1.0 + 0.51, 1.0 + 0.53]
    assert robust_std([0.9, 1.0, 1.1]) == pytest.approx(0.14826)
    assert mark_outliers([*values[:3] * 3, *values[3:]]).tolist() == [False] * 10 + [True]
    assert not mark_outliers([1.0, 1.0, 1.0, 99.0]).any(), "four values are too few"


@pytest.mark.parametrize("extra", [[5.0, 2.0, 1.0], [5.0], [1.0] * 20])
def test_slow_steps_at_the_start_are_warmup(extra: list[float]) -> None:
    """A hiccup later on does not pass for their end."""
    values = np.random.default_rng(4).normal(10, 0.1, 100)
    values[: len(extra)] += extra
    values[40] += 30.0
    assert len(extra) <= detect_warmup(values) <= len(extra) + 2


def test_warmup_needs_eight_steps_of_which_a_fifth_may_go() -> None:
    steps = [9.0, 1.0, 1.01, 0.99, 1.0, 1.01, 0.99, 1.0]
    assert detect_warmup(steps) == 1
    assert detect_warmup(steps[:7]) == 0
    assert detect_warmup([9.0, 9.0, *steps[1:]]) == 0, "two of nine steps are more than a fifth"


def test_steady_series_and_later_changes_are_seldom_cut() -> None:
    rng = np.random.default_rng(5)
    assert sum(detect_warmup(rng.normal(10, 0.1, n)) > 0 for n in (10, 50) * 500) <= 50
    assert detect_warmup([0.5, 0.5, *[1.0] * 20]) == 0, "fast steps at the start"
    for at, by, n in itertools.product((0.3, 0.5, 0.7), (0.92, 1.08), (10, 30, 100) * 20):
        values = rng.normal(10, 0.1, n)
        values[round(at * n) :] *= by
        assert detect_warmup(values) == 0


def test_drift_is_the_last_third_over_the_first() -> None:
    assert drift([2.0, 2.0, 2.0, 9.0, 9.0, 3.0, 3.0, 3.0]) == 0.5, "thirds of two steps of eight"
    assert drift([1.0] * 5) is None


def test_repeats_that_show_a_difference_are_more_for_a_smaller_one() -> None:
    """A spread of 2 % in 5 pairs: about what a table of the non-central t has for 80 %."""
    half_width = 0.02 * float(t_quantile(4.0)) / math.sqrt(5)
    shown = [repeats_to_show(share, 5, half_width, 0.95) for share in (0.1, 0.05, 0.01)]
    assert shown[0] is not None and shown[1] is not None and shown[2] is not None
    assert 2 <= shown[0] < shown[1] < 10 < shown[2]
    assert repeats_to_show(1e-6, 5, half_width, 0.95) is None
    assert float(t_quantile(2, 0.9)) == pytest.approx(2.91999, abs=1e-4)
