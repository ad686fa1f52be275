"""Intervals of step times and of their ratios, from how runs differ.

Steps of one run share its placement, its memory and its minute of the machine, so they say nothing
about how another run would come out. A run therefore counts as one observation, whatever the number
of its steps and their correlation, and the interval is Student's (1908, Biometrika 6:1) on the
logarithms of the runs' means or medians: step times differ by factors, and so do speedups. Means
of few steps that are skewed to the right are skewed themselves, so the upper bound of a mean
reaches further, by the first term of Cornish and Fisher's expansion for a studentised mean (Johnson
1978, Journal of the American Statistical Association 73:536; Hall 1992, Journal of the Royal
Statistical Society B 54:221). In medians and in ratios it (nearly) cancels. Of two
configurations whose repeats were measured alternately, the ratio of each repeat is one observation;
otherwise runs are compared by Welch's approximation (1947, Biometrika 34:28). `python -m
benchmarks.interval_coverage` measures how often these intervals hold the truth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

Values = NDArray[np.float64]
CONFIDENCE = 0.95
MOST_REPEATS = 10_000
POWER = 0.8
"""How often as many repeats show the difference."""
SHOWN = 0.05
"""The difference for which the repeats that show it are counted."""
FEWEST_STEPS = 5
"""With fewer steps each is shown, without an interval."""
ONE_RUN = "one run says nothing about how runs differ"
FEW_STEPS = f"fewer than {FEWEST_STEPS} steps"


@dataclass(frozen=True)
class Interval:
    """A value with its interval; low and high are None where runs are too few."""

    value: float
    low: float | None
    high: float | None
    basis: str = field(default="", compare=False)
    """What the bounds come from, such as 3 pairs; or why there are none."""
    repeats_for_5_percent: int | None = field(default=None, compare=False)
    """How many repeats show a difference of 5 % of a ratio, four times in five."""

    def excludes(self, other: float) -> bool:
        """Whether `other` lies outside the interval; False without one."""
        return self.low is not None and self.high is not None and not self.low <= other <= self.high

    def over(self, divisor: float) -> Interval:
        """The same quantity in units of `divisor`, above 0."""
        low, high = (None if bound is None else bound / divisor for bound in (self.low, self.high))
        return Interval(self.value / divisor, low, high, self.basis)

    def columns(self, name: str, factor: float = 1.0) -> dict[str, float | None]:
        """`factor` times the value and its bounds, as columns x (or x_s), x_low and x_high."""
        stem = name.removesuffix("_s")
        values = {name: self.value, f"{stem}_low": self.low, f"{stem}_high": self.high}
        return {key: None if value is None else factor * value for key, value in values.items()}

    @property
    def half_width(self) -> float | None:
        return None if self.low is None or self.high is None else (self.high - self.low) / 2


UNKNOWN = Interval(math.nan, None, None)


def finite_values(values: ArrayLike) -> Values:
    """The finite values as one flat array of floats."""
    array = np.asarray(values, dtype=np.float64).ravel()
    return array[np.isfinite(array)]


def median(values: Values) -> float:
    """The median of finite values; nan for none."""
    return float(np.median(values)) if values.size else math.nan


def t_quantile(
    freedom: NDArray[np.float64] | float, confidence: float = CONFIDENCE
) -> NDArray[np.float64]:
    """How many standard errors a two-sided interval reaches; degrees need not be whole."""
    # Imported here, as it takes a tenth of a second.
    from scipy.special import stdtrit

    return np.asarray(stdtrit(freedom, 0.5 + confidence / 2.0), dtype=np.float64)


def t_bounds(
    observations: ArrayLike, confidence: float = CONFIDENCE, skewness: ArrayLike = 0.0
) -> tuple[Values, Values]:
    """Student's interval of the mean over the last axis, of two observations or more.

    `skewness` of the observations, 0 or more, makes the upper bound reach further; the lower one
    stays, as an estimate of it is not to make an interval shorter.
    """
    x = np.asarray(observations, dtype=np.float64)
    runs = x.shape[-1]
    t, error = t_quantile(runs - 1, confidence), x.std(axis=-1, ddof=1) / math.sqrt(runs)
    further = np.asarray(skewness) * (2.0 * t**2 + 1.0) / (6.0 * math.sqrt(runs))
    centre = x.mean(axis=-1)
    return centre - t * error, centre + (t + further) * error


def welch_bounds(
    one: ArrayLike, other: ArrayLike, confidence: float = CONFIDENCE
) -> tuple[Values, Values]:
    """Welch's interval of the difference of means over the last axis, of two or more each."""
    x, y = np.asarray(one, dtype=np.float64), np.asarray(other, dtype=np.float64)
    squares = [values.var(axis=-1, ddof=1) / values.shape[-1] for values in (x, y)]
    total = squares[0] + squares[1]
    spread = [squares[i] ** 2 / (values.shape[-1] - 1) for i, values in enumerate((x, y))]
    some = total > 0.0
    freedom = np.where(some, total**2 / np.where(some, spread[0] + spread[1], 1.0), 1.0)
    reach = t_quantile(freedom, confidence) * np.sqrt(total)
    centre = x.mean(axis=-1) - y.mean(axis=-1)
    return centre - reach, centre + reach


def interval_of_runs(
    values: ArrayLike, steps: int | None = None, skewness: float = 0.0
) -> Interval:
    """The mean of one positive value a run, with its interval.

    `steps` are those behind the values, `skewness` is that of their logarithms.
    """
    x = finite_values(values)
    value = float(x.mean()) if x.size else math.nan
    if why := _why_none([x], steps):
        return Interval(value, None, None, why)
    return _around(value, np.exp(t_bounds(np.log(x), skewness=skewness)), f"{x.size} runs")


def interval_of_shares(values: ArrayLike, steps: int | None = None) -> Interval:
    """The mean of one share a run, from 0 to 1, with its interval; shares may be 0.

    `steps` are those behind the shares.
    """
    x = finite_values(values)
    value = float(x.mean()) if x.size else math.nan
    # A share of 0 has an interval, a time of 0 has none.
    if why := _why_none([x + 1.0], steps):
        return Interval(value, None, None, why)
    return _around(value, np.clip(t_bounds(x), 0.0, 1.0), f"{x.size} runs")


def _around(value: float, bounds: Values, basis: str, repeats: int | None = None) -> Interval:
    """Widened to contain the value, which the mean of very different runs may lie outside of."""
    low, high = bounds
    return Interval(value, float(min(low, value)), float(max(high, value)), basis, repeats)


def _why_none(values: Sequence[Values], steps: int | None) -> str:
    """Why values of runs have no interval; empty where they have one."""
    if any(x.size < 2 for x in values):
        return ONE_RUN
    if steps is not None and steps < FEWEST_STEPS:
        return FEW_STEPS
    return "" if all((x > 0.0).all() for x in values) else "a time of zero"


def signed_rank_interval(
    differences: Values, confidence: float
) -> tuple[float, float, float] | None:
    """Centre, lower and upper bound; None for pairs too few to have bounds of this confidence.

    The centre is the median of all averages of two differences, and the interval is of those
    averages whose signed-rank statistic is not rejected (Hodges and Lehmann 1963, Annals of
    Mathematical Statistics 34:598; Wilcoxon 1945, Biometrics Bulletin 1:80). It holds as often as
    it says for every distribution that is symmetric, whatever its tails.
    """
    pairs = differences.size
    rank = _rank_of_bound(pairs, (1.0 - confidence) / 2.0)
    if rank < 1:
        return None
    first, second = np.triu_indices(pairs)
    averages = np.sort((differences[first] + differences[second]) / 2.0)
    return float(np.median(averages)), float(averages[rank - 1]), float(averages[-rank])


def _rank_of_bound(pairs: int, tail: float) -> int:
    """How many of the smallest averages lie below the lower bound, and that one; 0 for none."""
    # Ways in which the ranks of the positive differences add up to each sum.
    ways = np.zeros(pairs * (pairs + 1) // 2 + 1)
    ways[0] = 1.0
    for rank in range(1, pairs + 1):
        ways[rank:] += ways[:-rank].copy()
    return int(np.searchsorted(np.cumsum(ways) / 2.0**pairs, tail, side="right"))


def ratio_of_pairs(
    top: Values,
    bottom: Values,
    factor: float = 1.0,
    steps: int | None = None,
    confidence: float = CONFIDENCE,
    *,
    by_ranks: bool = False,
) -> Interval:
    """`factor` times the geometric mean of the ratios, each of which is one observation.

    `by_ranks`: the interval and its centre are those of signed ranks of the logarithms, where there
    are enough pairs.
    """
    if why := _why_none([top, bottom], steps):
        return Interval(factor * _geometric_mean(top / bottom), None, None, why)
    logarithms, basis = np.log(top / bottom), f"{top.size} pairs"
    ranked = signed_rank_interval(logarithms, confidence) if by_ranks else None
    centre, *bounds = ranked or (logarithms.mean(), *t_bounds(logarithms, confidence))
    basis += ", by ranks" if ranked else ""
    repeats = repeats_to_show(SHOWN, top.size, float(bounds[1] - bounds[0]) / 2, confidence)
    return _around(factor * math.exp(centre), factor * np.exp(bounds), basis, repeats)


def ratio_of_runs(
    top: Values,
    bottom: Values,
    factor: float = 1.0,
    steps: int | None = None,
    confidence: float = CONFIDENCE,
) -> Interval:
    """`factor` times the ratio of geometric means of runs that do not belong together."""
    value = factor * _geometric_mean(top) / _geometric_mean(bottom)
    if why := _why_none([top, bottom], steps):
        return Interval(value, None, None, why)
    low, high = welch_bounds(np.log(top), np.log(bottom), confidence)
    fewer, basis = min(top.size, bottom.size), f"{top.size} and {bottom.size} runs"
    repeats = repeats_to_show(SHOWN, fewer, float(high - low) / 2, confidence, pairs=False)
    return _around(value, factor * np.exp((low, high)), basis, repeats)


def _geometric_mean(values: Values) -> float:
    if not values.size:
        return math.nan
    return float(np.exp(np.log(values).mean())) if (values > 0.0).all() else float(values.mean())


def repeats_to_show(
    share: float, runs: int, half_width: float, confidence: float, *, pairs: bool = True
) -> int | None:
    """How many repeats show that two configurations differ by `share`, with probability `POWER`.

    `half_width` is that of the interval of the logarithm of their ratio, from `runs` repeats, which
    are pairs or, of each configuration, runs. None where `MOST_REPEATS` are too few. The sum of two
    quantiles of Student's t is somewhat above the exact non-central one, for few repeats.
    """
    each = 1 if pairs else 2
    spread = half_width * math.sqrt(runs) / float(t_quantile(each * (runs - 1), confidence))
    repeats = np.arange(2.0, MOST_REPEATS)
    freedom = each * (repeats - 1.0)
    # Of a two-sided interval of confidence 2p - 1 the quantile is that of p.
    reach = t_quantile(freedom, confidence) + t_quantile(freedom, 2.0 * POWER - 1.0)
    enough = reach * spread / np.sqrt(repeats) <= math.log1p(share)
    return int(repeats[enough.argmax()]) if enough.any() else None


def ratio_in_words(ratio: Interval) -> str:
    """A ratio in words: faster, slower, or no difference where its interval contains 1."""
    if ratio.low is None or ratio.high is None:
        return f"{ratio.value:.3f} times, no interval: {ratio.basis or ONE_RUN}"
    span = f"{ratio.value:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"
    if not ratio.excludes(1.0):
        return f"no difference shown: {span} contains 1{repeats_in_words(ratio)}"
    return f"{'faster' if ratio.value > 1.0 else 'slower'}: {span}"


def repeats_in_words(ratio: Interval) -> str:
    """How many repeats show a difference of 5 %, to follow a verdict; empty where unknown."""
    repeats = ratio.repeats_for_5_percent
    return f"; {repeats} repeats would show a {SHOWN:.0%} difference" if repeats else ""
