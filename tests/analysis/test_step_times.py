"""Warm-up, outliers, drift and correlation of step times."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.statistics.intervals import median
from analysis.statistics.warmup import (
    MAD_TO_SIGMA,
    OUTLIER_Z,
    _squared_standard_errors,
    detect_warmup,
    drift,
    effective_n,
    mark_outliers,
    robust_std,
    step_statistics,
)

seconds = st.floats(min_value=1e-3, max_value=1e3)
EXACT = {"rel": 1e-9, "abs": 1e-12}


def plain_effective_n(values: list[float]) -> float:
    """n / (1 + 2 sum of autocorrelations), pairs of lags as long as they are positive."""
    n, mean = len(values), sum(values) / len(values)
    off = [value - mean for value in values]

    def correlation(lag: int) -> float:
        return sum(off[i] * off[i + lag] for i in range(n - lag)) / sum(v * v for v in off)

    total, lag = 0.0, 1
    while lag < n - 1:
        pair = correlation(lag) + correlation(lag + 1)
        if pair <= 0:
            break
        total, lag = total + pair, lag + 2
    return n / (1 + 2 * total)


def wave(n: int, period: float, seed: int) -> list[float]:
    noise = np.random.default_rng(seed).normal(0, 0.3, n)
    return [10 + math.sin(i / period) + noise[i] for i in range(n)]


@given(st.integers(4, 40), st.floats(0.2, 20), st.integers(0, 99))
def test_steps_count_as_many_independent_ones(n: int, period: float, seed: int) -> None:
    values = wave(n, period, seed)
    assert effective_n(values) == pytest.approx(plain_effective_n(values), **EXACT)


def test_few_or_equal_steps_count_as_they_are() -> None:
    assert effective_n([1.0, 2.0, 3.0]) == 3.0
    assert effective_n([1.0, 2.0, 3.0, 4.0]) == pytest.approx(plain_effective_n([1, 2, 3, 4]))
    assert effective_n([2.0] * 10) == 10.0
    assert effective_n([]) == 0.0


@given(st.lists(seconds, min_size=5, max_size=30))
def test_an_outlier_is_further_off_than_others_are(values: list[float]) -> None:
    middle = float(np.median(values))
    spread = 1.4826 * float(np.median([abs(value - middle) for value in values]))
    assert robust_std(values) == pytest.approx(spread, **EXACT)
    limit = 3.5 * robust_std(values)
    expected = [abs(value - median(np.array(values))) > limit for value in values]
    assert mark_outliers(values).tolist() == expected


def test_of_five_steps_one_can_be_an_outlier_and_of_four_none() -> None:
    assert mark_outliers([1.0, 1.1, 0.9, 1.0, 9.0]).tolist() == [False] * 4 + [True]
    assert not mark_outliers([1.0, 1.0, 1.0, 9.0]).any()
    missing = [1.0, 1.0, 1.0, math.nan, 9.0]
    assert mark_outliers(missing).tolist() == [False] * 5
    assert mark_outliers([*missing, 1.0]).tolist() == [False] * 4 + [True, False]
    assert (MAD_TO_SIGMA, OUTLIER_Z) == (1.4826, 3.5)


def plain_warmup(values: list[float]) -> int:
    """MSER by its definition, with the clipping and the limits that the docstring names."""
    n, fifth = len(values), len(values) // 5
    head = values[: max(8, n // 2)]
    centre, rest = float(np.median(head[fifth:])), np.array(values[fifth:])
    spread = 1.4826 * float(np.median(np.abs(rest - np.median(rest))))
    spread = max(spread, abs(centre) / 1000)
    clipped = np.clip(head, centre - 5 * spread, centre + 5 * spread)
    errors = []
    for first in range(fifth + 1):
        left = clipped[first:]
        errors.append(float(np.sum((left - left.mean()) ** 2)) / len(left) ** 2)
    best = int(np.argmin(errors))
    slow = centre + 3 * spread
    if best == 0 or float(np.median(clipped[:best])) <= slow or clipped[best] > slow:
        return 0
    return best


@given(
    st.integers(8, 40),
    st.integers(0, 30),
    st.sampled_from([0.0, 0.2, 0.29, 0.31, 0.5, 2.0, -0.5, -3.0]),
    st.integers(0, 999),
)
@settings(max_examples=300, deadline=None)
def test_warmup_is_msers(n: int, slow: int, by: float, seed: int) -> None:
    values = np.random.default_rng(seed).normal(10, 0.1, n)
    values[: min(slow, n)] += by
    assert detect_warmup(values) == plain_warmup(values.tolist())


NEARLY_ONE = [1.0, 1.00001, 0.99999, 1.0, 1.00001, 0.99999, 1.0, 1.00001, 0.99999]


def test_a_shift_that_is_noise_is_not_cut() -> None:
    """With nearly equal times a thousandth is taken for their spread: three of these are noise."""
    assert detect_warmup([1.0029] * 2 + NEARLY_ONE) == 0
    assert detect_warmup([1.0031] * 2 + NEARLY_ONE) == 2
    hundreds = [100 * time for time in NEARLY_ONE]
    assert detect_warmup([100.29] * 2 + hundreds) == 0
    assert detect_warmup([100.31] * 2 + hundreds) == 2


def test_of_eight_steps_one_can_be_warmup_and_of_seven_none() -> None:
    assert detect_warmup([9.0, *NEARLY_ONE[:7]]) == 1
    assert detect_warmup([9.0, *NEARLY_ONE[:6]]) == 0
    assert detect_warmup([9.0, math.nan, *NEARLY_ONE[:6]]) == 0


def test_fast_steps_at_the_start_are_no_warmup() -> None:
    assert detect_warmup([0.5] * 2 + NEARLY_ONE) == 0


@pytest.mark.parametrize("at", [0.3, 0.5, 0.7])
@pytest.mark.parametrize("by", [0.92, 1.08])
@pytest.mark.parametrize("n", [10, 30, 100])
def test_a_later_change_is_no_warmup(at: float, by: float, n: int) -> None:
    """Not even where it makes what follows the first fifth faster."""
    for seed in range(20):
        values = np.random.default_rng(seed).normal(10, 0.1, n)
        values[round(at * n) :] *= by
        assert detect_warmup(values) == 0


def test_a_start_longer_than_a_fifth_is_no_warmup() -> None:
    values = np.random.default_rng(8).normal(10, 0.1, 50)
    values[:10] += 5.0
    assert detect_warmup(values) == 10
    values[10] += 5.0
    assert detect_warmup(values) == 0


@given(st.lists(seconds, min_size=6, max_size=30))
def test_drift_is_of_medians_of_thirds(values: list[float]) -> None:
    third = len(values) // 3
    expected = np.median(values[-third:]) / np.median(values[:third]) - 1
    assert drift(values) == pytest.approx(expected, **EXACT)
    assert drift(values[:5]) is None


def test_statistics_are_those_of_the_tables() -> None:
    found = step_statistics(np.array([1.0, 2.0, 6.0]))
    assert found == {
        "mean_s": 3.0,
        "std_s": pytest.approx(math.sqrt(14 / 2)),
        "min_s": 1.0,
        "max_s": 6.0,
        "n": 3.0,
    }
    pair = step_statistics(np.array([1.0, 2.0]))["std_s"]
    assert pair == pytest.approx(math.sqrt(0.5))
    assert math.isnan(step_statistics(np.array([1.0]))["std_s"])


@pytest.mark.parametrize("extra", [[5.0, 2.0, 1.0], [5.0], [1.0] * 20])
def test_warmup_is_found_where_there_is_one(extra: list[float]) -> None:
    rng = np.random.default_rng(4)
    values = rng.normal(10, 0.1, 100)
    values[: len(extra)] += extra
    # A hiccup later on must not pass for the end of the warm-up.
    values[40] += 30.0
    found = detect_warmup(values)
    assert len(extra) <= found <= len(extra) + 2


@pytest.mark.parametrize("n", [10, 50])
def test_steady_series_are_seldom_cut(n: int) -> None:
    """At most one in twenty."""
    rng = np.random.default_rng(5)
    cut = [detect_warmup(rng.normal(10, 0.1, n)) > 0 for _ in range(1000)]
    assert sum(cut) <= 50


@given(st.lists(seconds, max_size=7))
def test_few_steps_have_no_warmup(values: list[float]) -> None:
    assert detect_warmup(values) == 0


@given(st.lists(seconds, min_size=8, max_size=60))
@settings(max_examples=60, deadline=None)
def test_at_most_a_fifth_is_warmup(values: list[float]) -> None:
    assert 0 <= detect_warmup(values) <= len(values) // 5


def test_outliers_are_marked_by_robust_spread() -> None:
    values = [10.0, 10.1, 9.9, 10.05, 9.95, 10.02, 15.0, 9.98]
    assert mark_outliers(values).tolist() == [False] * 6 + [True, False]
    assert not mark_outliers([1.0, 1.0, 100.0]).any()
    assert mark_outliers([]).size == 0
    # Half of the values alike: anything else stands out, and nothing is divided by zero.
    assert mark_outliers([1.0] * 6 + [1.5]).tolist() == [False] * 6 + [True]


def test_robust_spread_is_a_normals_standard_deviation() -> None:
    assert robust_std(np.random.default_rng(7).normal(0, 2.0, 20_000)) == pytest.approx(
        2.0, rel=0.03
    )


def test_drift_compares_thirds() -> None:
    assert drift([1.0] * 4 + [1.5] * 4 + [2.0] * 4) == pytest.approx(1.0)
    assert drift([1.0, 2.0, 3.0]) is None


def test_steps_as_slow_as_the_limit_are_no_warmup_and_one_at_it_ends_one() -> None:
    """The limit is 3 of the smallest spreads, a thousandth of the median, above the median."""
    limit = 1.0 + 3.0 * (1e-3 * abs(1.0))
    assert detect_warmup([limit, *[1.0] * 7]) == 0
    assert detect_warmup([1.004, *[1.0] * 7]) == 1
    assert detect_warmup([1.005, limit, *[1.0] * 6]) == 1


def test_standard_errors_hold_for_times_far_from_zero() -> None:
    x = 1e9 + np.array([0.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 0.0])
    plain = [np.var(x[d:]) / (x.size - d) for d in range(x.size)]
    assert _squared_standard_errors(x) == pytest.approx(plain, abs=1e-9)
