"""Bootstrap intervals of means, medians and ratios of step times. Pure functions of arrays.

Step times are not independent: neighbouring steps share the machine's load, and steps of one run
share its placement. So intervals come from a two-level bootstrap: runs (repeats) are drawn whole,
and within a run steps are drawn in blocks whose length follows from their correlation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

Values = NDArray[np.float64]
RESAMPLES = 1_000
_MIN_MEANS_PER_RUN = 100
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A value with its bootstrap interval; low and high are None for a single value."""

    value: float
    low: float | None
    high: float | None

    def excludes(self, other: float) -> bool:
        """Whether `other` lies outside the interval; False without one."""
        return self.low is not None and self.high is not None and not self.low <= other <= self.high

    @property
    def half_width(self) -> float | None:
        return None if self.low is None or self.high is None else (self.high - self.low) / 2


def finite_values(values: ArrayLike) -> Values:
    """The finite values as one flat array of floats."""
    array = np.asarray(values, dtype=np.float64).ravel()
    return array[np.isfinite(array)]


def median(values: Values) -> float:
    """The median of finite values, nan for none; sorting is fastest for a few hundred values."""
    ordered = np.sort(values)
    middle = ordered.size // 2
    if ordered.size % 2:
        return float(ordered[middle])
    return float((ordered[middle - 1] + ordered[middle]) / 2.0) if ordered.size else math.nan


def block_length(values: ArrayLike) -> int:
    """Length of the blocks that a block bootstrap should draw; 1 for independent steps.

    Politis and White 2004 (Econometric Reviews 23:53) for the circular block bootstrap, with the
    correction of Patton, Politis and White 2009 (28:372); at most a third of the series. Steps
    whose correlation would narrow the interval count as independent.
    """
    x = finite_values(values)
    n = x.size
    if n < 9 or np.ptp(x) == 0.0:
        return 1
    x = x - x.mean()
    run = max(5, math.ceil(math.sqrt(math.log10(n))))
    lags = min(math.ceil(math.sqrt(n)) + run, n - 1)
    covariance = np.array([x[: n - k] @ x[k:] for k in range(lags + 1)]) / n
    small = np.abs(covariance[1:] / covariance[0]) < 2.0 * math.sqrt(math.log10(n) / n)
    last = _last_significant_lag(small, run)
    reach = min(2 * last, lags)
    if reach == 0:
        return 1
    k = np.arange(-reach, reach + 1)
    window = np.clip(2.0 * (1.0 - np.abs(k) / reach), 0.0, 1.0)
    two_sided = covariance[np.abs(k)]
    spectrum = float(window @ two_sided)
    slope = float(window @ (np.abs(k) * two_sided))
    if spectrum <= covariance[0]:
        return 1
    length = (2.0 * slope**2 / (4.0 / 3.0 * spectrum**2)) ** (1.0 / 3.0) * n ** (1.0 / 3.0)
    return int(np.clip(math.ceil(length), 1, n // 3))


def _last_significant_lag(small: NDArray[np.bool_], run: int) -> int:
    """The last lag before `run` negligible correlations in a row."""
    streak = 0
    for lag, quiet in enumerate(small, 1):
        streak = streak + 1 if quiet else 0
        if streak == run:
            return lag - run
    significant = np.flatnonzero(~small)
    return int(significant[-1]) + 1 if significant.size else 0


def resample_means(runs: Sequence[ArrayLike], *, draws: int = RESAMPLES, seed: int = 0) -> Values:
    """`draws` bootstrap means over all steps of `runs`; empty for no values.

    Runs are drawn whole, then blocks of steps within each. At both levels one fewer is drawn than
    there are, which makes the variance unbiased (Rao and Wu 1988, JASA 83:231): this matters for
    two or three repeats. With one run the difference between runs is unknown, and the interval
    covers its steps only.
    """
    series = [run for run in map(finite_values, runs) if run.size]
    if not series:
        return np.empty(0)
    rng = np.random.default_rng(seed)
    if len(series) == 1:
        return _block_means(series[0], draws, rng)
    size = max(_MIN_MEANS_PER_RUN, draws // len(series))
    banks = np.stack([_block_means(run, size, rng) for run in series])
    steps = np.array([run.size for run in series], dtype=np.float64)
    drawn = rng.integers(0, len(series), size=(draws, len(series) - 1))
    weights = steps[drawn]
    picked = banks[drawn, rng.integers(0, size, size=drawn.shape)]
    means: Values = (picked * weights).sum(axis=1) / weights.sum(axis=1)
    return means


def _block_means(run: Values, size: int, rng: np.random.Generator) -> Values:
    """Means of `size` circular block bootstrap samples of one run."""
    length = block_length(run)
    sums = run
    if length > 1:
        wrapped = np.concatenate([run, run[: length - 1]])
        sums = np.convolve(wrapped, np.ones(length), mode="valid")
    blocks = max(1, math.ceil(run.size / length) - 1)
    starts = rng.integers(0, run.size, size=(size, blocks))
    means: Values = sums[starts].sum(axis=1) / (blocks * length)
    return means


def resample_medians(runs: Sequence[ArrayLike], *, draws: int = RESAMPLES, seed: int = 0) -> Values:
    """`draws` bootstrap medians over all steps of `runs`, drawn as for means; empty for none.

    The share of steps below the median is resampled, and its quantiles are looked up among the
    steps (Woodruff 1952, JASA 47:635): the same two-level draws, without sorting each.
    """
    series = [run for run in map(finite_values, runs) if run.size]
    if not series:
        return np.empty(0)
    pooled = np.concatenate(series)
    middle = median(pooled)
    below = [0.5 - np.sign(run - middle) / 2.0 for run in series]
    shares = resample_means(below, draws=draws, seed=seed)
    medians: Values = np.quantile(pooled, np.clip(1.0 - shares, 0.0, 1.0))
    return medians


def interval(value: float, resamples: Values, confidence: float = CONFIDENCE) -> Interval:
    """The percentile interval of `resamples` around `value`; no bounds without resamples.

    Percentile, not BCa: BCa's acceleration is a jackknife over exchangeable observations, and of
    two or three repeats there are two or three.
    """
    finite = resamples[np.isfinite(resamples)]
    if not finite.size or not math.isfinite(value):
        return Interval(value, None, None)
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(finite, [tail, 1.0 - tail])
    return Interval(value, float(min(low, value)), float(max(high, value)))


@dataclass(frozen=True)
class Sample:
    """Step times of the runs (repeats) of one configuration, seconds; resampled once.

    Two samples that are compared need different seeds: equal draws would treat their noise as
    shared. Independent draws make the interval of a ratio wider, not narrower, where interleaved
    repeats shared the machine's load.
    """

    runs: Sequence[ArrayLike]
    seed: int = 0

    @cached_property
    def values(self) -> Values:
        series = [finite_values(run) for run in self.runs]
        return np.concatenate(series) if series else np.empty(0)

    @cached_property
    def _means(self) -> Values:
        return resample_means(self.runs, seed=self.seed) if self.values.size > 1 else np.empty(0)

    @cached_property
    def _medians(self) -> Values:
        return resample_medians(self.runs, seed=self.seed) if self.values.size > 1 else np.empty(0)

    @cached_property
    def mean(self) -> Interval:
        """The mean over all steps; no bounds for fewer than two."""
        return interval(float(self.values.mean()) if self.values.size else math.nan, self._means)

    @cached_property
    def median(self) -> Interval:
        """The median over all steps; no bounds for fewer than two."""
        return interval(median(self.values), self._medians)

    def mean_over(self, other: Sample, factor: float = 1.0) -> Interval:
        """`factor` times this mean over the other's, with the interval of the ratio."""
        return _ratio(self.mean, self._means, other.mean, other._means, factor)

    def median_over(self, other: Sample, factor: float = 1.0) -> Interval:
        """`factor` times this median over the other's, with the interval of the ratio."""
        return _ratio(self.median, self._medians, other.median, other._medians, factor)


def _ratio(
    top: Interval, top_draws: Values, bottom: Interval, bottom_draws: Values, factor: float
) -> Interval:
    if not top_draws.size or not bottom_draws.size:
        return Interval(factor * top.value / bottom.value, None, None)
    return interval(factor * top.value / bottom.value, factor * top_draws / bottom_draws)


def ratio_in_words(ratio: Interval, *, more: str = "faster", less: str = "slower") -> str:
    """A ratio in words: faster, slower, or no difference where its interval contains 1."""
    if ratio.low is None or ratio.high is None:
        return f"{ratio.value:.3f} times, one measurement: no interval"
    span = f"{ratio.value:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"
    if not ratio.excludes(1.0):
        return f"no difference shown: {span} contains 1"
    return f"{more if ratio.value > 1.0 else less}: {span}"
