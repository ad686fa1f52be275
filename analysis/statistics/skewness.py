"""Estimates of how skewed a run's mean step is, from its steps. Pure functions of arrays."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
FEWEST_STEPS = 5
"""With fewer steps a run the skewness is not estimated."""
_MOST_CORRELATED = 0.9
_MOST_SKEWED = 2.0
"""That of an exponential distribution: of few steps an estimate may be anything."""


def skewness_of_means(steps: Values, spread: Values) -> Values:
    """Skewness of the means of runs, 0 or more, of [..., runs, steps] seconds.

    `spread` [...]: the standard deviation of the logarithms of the runs' means. The third moment of
    steps is pooled over runs. Neighbours that are correlated (by AR(1), its coefficient corrected
    for the bias of short series; Marriott and Pope 1954, Biometrika 41:390) make a mean vary more
    and keep more of the steps' skewness. What runs differ beyond their steps is taken to be
    symmetric, so it makes their means less skewed.
    """
    count = steps.shape[-1]
    if count < FEWEST_STEPS:
        return np.zeros_like(spread)
    relative = steps / steps.mean(axis=-1, keepdims=True) - 1.0
    squares = (relative**2).sum(axis=(-1, -2))
    varies = squares > 0.0
    safe = np.where(varies, squares, 1.0)
    lagged = (relative[..., 1:] * relative[..., :-1]).sum(axis=(-1, -2)) / safe
    correlation = np.clip((count * lagged + 1.0) / (count - 3.0), 0.0, _MOST_CORRELATED)
    size = relative.shape[-2] * count
    skewness = (relative**3).sum(axis=(-1, -2)) / size / (safe / size) ** 1.5
    # Of the mean of an AR(1) series: that of its shocks over the root of their number.
    of_mean = skewness * (1.0 - correlation**3) / (1.0 - correlation**2) ** 1.5 / np.sqrt(count)
    variance = squares / (relative.shape[-2] * (count - 1.0))
    of_steps = np.sqrt(variance * (1.0 + correlation) / (1.0 - correlation) / count)
    share = np.where(spread > of_steps, of_steps / np.where(spread > 0.0, spread, 1.0), 1.0)
    found: Values = np.where(varies, np.clip(of_mean, 0.0, _MOST_SKEWED) * share**3, 0.0)
    return found
