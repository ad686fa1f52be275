"""Student's t: how far intervals of few observations reach, and how many a precision needs."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95
MOST_REPEATS = 10_000


def t_quantile(
    freedom: NDArray[np.float64] | float, confidence: float = CONFIDENCE
) -> NDArray[np.float64]:
    """How many standard errors a two-sided interval reaches; degrees need not be whole."""
    # Imported here, as it takes a tenth of a second.
    from scipy.special import stdtrit

    return np.asarray(stdtrit(freedom, 0.5 + confidence / 2.0), dtype=np.float64)


def repeats_needed(spread: float, precision: float) -> int | None:
    """The fewest observations whose interval reaches at most `precision` from its middle.

    `spread` is the standard deviation of their logarithms, `precision` is relative. None where
    `MOST_REPEATS` are too few.
    """
    counts = np.arange(2.0, MOST_REPEATS + 1.0)
    reach = t_quantile(counts - 1.0) * spread / np.sqrt(counts)
    enough = reach <= math.log1p(precision)
    return int(counts[enough.argmax()]) if enough.any() else None
