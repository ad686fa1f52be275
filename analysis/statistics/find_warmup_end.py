"""Statistics of a series of step times: warm-up, outliers, drift. Pure functions of arrays."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from analysis.statistics.intervals import Values, finite_values, median

MAD_TO_SIGMA = 1.4826
"""Standard deviation over median absolute deviation, for a normal distribution."""
OUTLIER_Z = 3.5
"""Iglewicz and Hoaglin 1993, How to Detect and Handle Outliers, section 3.3."""


def robust_std(values: ArrayLike) -> float:
    """Robust standard deviation: the median absolute deviation, scaled to a normal distribution."""
    x = finite_values(values)
    return MAD_TO_SIGMA * median(np.abs(x - median(x)))


def mark_outliers(values: ArrayLike) -> NDArray[np.bool_]:
    """Which values lie more than 3.5 robust standard deviations from the median.

    Outliers are counted and marked, never left out. Of fewer than 5 values none is one, because
    their spread is not known.
    """
    x = np.asarray(values, dtype=np.float64)
    if np.isfinite(x).sum() < 5:
        return np.zeros(x.shape, dtype=np.bool_)
    marked: NDArray[np.bool_] = np.abs(x - median(finite_values(x))) > OUTLIER_Z * robust_std(x)
    return marked


def detect_warmup(values: ArrayLike) -> int:
    """How many steps at the start are warm-up: slower than what follows, a fifth at most.

    MSER (White 1997, Simulation 69:323): cut where the standard error of the rest is smallest.
    Only the first half is used, so that a change in mid-run moves nothing, with values
    clipped at 5 robust standard deviations, so that a single slow step is not taken for the end of
    a transient. Steps are cut only if their median is 3 of these above what follows, and the first
    one kept is not: a change from slow to fast after the first fifth is no warm-up. Of fewer than 8
    steps none are cut.
    """
    x = finite_values(values)
    fifth = x.size // 5
    if x.size < 8:
        return 0
    head = x[: max(8, x.size // 2)]
    centre = median(head[fifth:])
    spread = max(robust_std(x[fifth:]), 1e-3 * abs(centre))
    clipped = np.clip(head, centre - 5.0 * spread, centre + 5.0 * spread)
    best = int(np.argmin(_squared_standard_errors(clipped)[: fifth + 1]))
    slow = centre + 3.0 * spread
    return best if best and median(clipped[:best]) > slow >= clipped[best] else 0


def _squared_standard_errors(x: Values) -> Values:
    """Squared standard error of the mean of x[d:], for each d."""
    left = np.arange(x.size, 0, -1, dtype=np.float64)
    centred = x - x.mean()
    sums = np.cumsum(centred[::-1])[::-1]
    squares = np.cumsum(centred[::-1] ** 2)[::-1]
    errors: Values = (squares - sums**2 / left) / left**2
    return errors


def drift(values: ArrayLike) -> float | None:
    """Median of the last third over that of the first, less 1; None for fewer than 6 steps."""
    x = finite_values(values)
    third = x.size // 3
    if third < 2:
        return None
    return median(x[-third:]) / median(x[:third]) - 1.0
