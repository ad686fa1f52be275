"""Estimates of the skewness of run means, from the steps of few runs."""

from __future__ import annotations

import numpy as np
import pytest

from analysis.statistics.intervals import interval_of_runs, t_bounds
from analysis.statistics.sample import Sample
from analysis.statistics.skewness import skewness_of_means
from benchmarks.coverage import autoregressive

NOTHING = np.asarray(0.0)


def exponential(correlation: float, studies: int, runs: int, steps: int) -> np.ndarray:
    rng = np.random.default_rng(5)
    shocks = rng.exponential(size=(studies, runs, 40 + steps)) - 1.0
    return 1.0 + 0.03 * autoregressive(shocks, correlation)


@pytest.mark.parametrize("correlation", [0.0, 0.5])
def test_it_is_that_of_means_of_exponential_shocks(correlation: float) -> None:
    """The truth is measured on the means of 40,000 runs; one estimate is of ten of them."""
    steps = exponential(correlation, 4_000, 10, 100)
    means = steps.mean(axis=-1).ravel()
    true = float(((means - means.mean()) ** 3).mean() / means.std() ** 3)
    found = skewness_of_means(steps, np.zeros(4_000))
    assert float(found.mean()) == pytest.approx(true, rel=0.15)


def test_it_falls_with_the_cube_of_the_steps_share_of_the_spread() -> None:
    steps = exponential(0.0, 1, 5, 50)[0]
    alone = float(skewness_of_means(steps, NOTHING))
    of_steps = 0.03 / np.sqrt(50)
    wide, wider = (float(skewness_of_means(steps, np.asarray(s))) for s in (0.05, 0.1))
    assert alone > 0.1
    assert wide == pytest.approx(8 * wider)
    assert wide < alone * (1.5 * of_steps / 0.05) ** 3


def test_it_is_nothing_for_steps_that_are_equal_few_or_skewed_to_the_left() -> None:
    steps = exponential(0.0, 1, 5, 50)[0]
    assert skewness_of_means(2.0 - steps, NOTHING) == 0.0
    assert skewness_of_means(np.ones((3, 10)), NOTHING) == 0.0
    assert skewness_of_means(steps[:, :4], NOTHING) == 0.0


def test_it_lengthens_the_upper_side_of_a_mean_alone() -> None:
    runs = [list(run) for run in exponential(0.7, 1, 3, 10)[0]]
    sample = Sample(runs)
    plain = interval_of_runs(sample.means)
    assert sample.mean.low == plain.low and sample.mean.high is not None
    assert plain.high is not None and sample.mean.high > plain.high
    assert sample.median == interval_of_runs(sample.medians)
    # Another length of one run, or a unit, changes nothing that matters.
    longer = Sample([runs[0] + [1.0], *runs[1:]])
    assert longer.mean.high is not None
    minutes = Sample([[60.0 * step for step in run] for run in runs])
    assert minutes.mean.high == pytest.approx(60.0 * sample.mean.high)


def test_the_upper_bound_reaches_as_far_as_the_expansion_says() -> None:
    """Johnson 1978, of observations -1, 0, 1: t of 2 degrees is 4.303, the error 1 / root 3."""
    low, high = t_bounds([-1.0, 0.0, 1.0], skewness=1.2)
    t, root = 4.302652729911275, 3.0**0.5
    assert low == pytest.approx(-t / root)
    assert high == pytest.approx((t + 1.2 * (2.0 * t * t + 1.0) / (6.0 * root)) / root)
