"""Statistics of step times: intervals, warm-up, outliers, noise. Pure functions of arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from analysis.stats.intervals import (
    Values,
    finite_values,
    median,
)

MAD_TO_SIGMA = 1.4826
"""Median absolute deviation to standard deviation, for a normal distribution."""
OUTLIER_Z = 3.5
"""Iglewicz and Hoaglin 1993, How to Detect and Handle Outliers, section 3.3."""


def effective_n(values: ArrayLike) -> float:
    """How many independent values the series is worth: n / (1 + 2 sum of autocorrelations).

    The sum stops at the first pair of neighbouring lags whose sum is not positive (Geyer 1992,
    Statistical Science 7:473, initial positive sequence).
    """
    x = finite_values(values)
    n = x.size
    if n < 4 or np.ptp(x) == 0.0:
        return float(n)
    x = x - x.mean()
    total = 0.0
    variance = x @ x
    for lag in range(1, n - 1, 2):
        pair = (x[: n - lag] @ x[lag:] + x[: n - lag - 1] @ x[lag + 1 :]) / variance
        if pair <= 0.0:
            break
        total += pair
    return float(n / (1.0 + 2.0 * total))


def robust_std(values: ArrayLike) -> float:
    """Spread that outliers do not move: the median absolute deviation, scaled to a normal's."""
    x = finite_values(values)
    return MAD_TO_SIGMA * median(np.abs(x - median(x)))


def mark_outliers(values: ArrayLike) -> NDArray[np.bool_]:
    """Which values lie more than 3.5 robust standard deviations from the median.

    For counting and marking: nothing is ever left out for being one. Of fewer than 5 values none
    is: their spread is not known.
    """
    x = np.asarray(values, dtype=np.float64)
    if np.isfinite(x).sum() < 5:
        return np.zeros(x.shape, dtype=np.bool_)
    marked: NDArray[np.bool_] = np.abs(x - median(finite_values(x))) > OUTLIER_Z * robust_std(x)
    return marked


@dataclass(frozen=True)
class Warmup:
    """How many steps from the start are not yet like the rest; `settled` false if it never was."""

    steps: int
    settled: bool


def detect_warmup(values: ArrayLike) -> Warmup:
    """Find the start-up transient of a series of step times.

    MSER (White 1997, Simulation 69:323): cut where the standard error of what is left is least,
    at most half way. Values are first clipped at 5 robust standard deviations of the second half,
    so that a lone hiccup does not pass for the end of a transient; and a cut stands only if what
    it cuts off lies, in its median, over 3 of them from the rest, so that noise is not cut.
    Fewer than 8 steps settle nothing: none are cut.
    """
    x = finite_values(values)
    n = x.size
    if n < 8:
        return Warmup(0, True)
    half = n // 2
    centre, spread = median(x[half:]), robust_std(x[half:])
    spread = max(spread, 1e-3 * abs(centre))
    clipped = np.clip(x, centre - 5.0 * spread, centre + 5.0 * spread)
    best = int(np.argmin(_squared_standard_errors(clipped)[: n - 4]))
    if best == 0 or abs(median(clipped[:best]) - centre) <= 3.0 * spread:
        return Warmup(0, True)
    return Warmup(best, True) if best <= half else Warmup(half, False)


def _squared_standard_errors(x: Values) -> Values:
    """Squared standard error of the mean of x[d:], for each d."""
    left = np.arange(x.size, 0, -1, dtype=np.float64)
    centred = x - x.mean()
    sums = np.cumsum(centred[::-1])[::-1]
    squares = np.cumsum(centred[::-1] ** 2)[::-1]
    errors: Values = (squares - sums**2 / left) / left**2
    return errors


def drift(values: ArrayLike) -> float | None:
    """Median of the last third over that of the first, less 1; none for fewer than 6 steps."""
    x = finite_values(values)
    third = x.size // 3
    if third < 2:
        return None
    return median(x[-third:]) / median(x[:third]) - 1.0


def step_statistics(seconds: NDArray[Any]) -> dict[str, float]:
    """What Raffi's tables print; his standard deviation is the sample's (n - 1)."""
    return {
        "mean_s": float(seconds.mean()),
        "std_s": float(seconds.std(ddof=1)) if seconds.size > 1 else float("nan"),
        "min_s": float(seconds.min()),
        "max_s": float(seconds.max()),
        "n": float(seconds.size),
    }
