"""Student's t: how far an interval reaches, and how many repeats show a given difference."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95
MOST_REPEATS = 10_000
POWER = 0.8
"""How often as many repeats show the difference."""


def t_quantile(
    freedom: NDArray[np.float64] | float, confidence: float = CONFIDENCE
) -> NDArray[np.float64]:
    """How many standard errors a two-sided interval reaches; degrees need not be whole."""
    # Imported here, as it takes a tenth of a second.
    from scipy.special import stdtrit

    return np.asarray(stdtrit(freedom, 0.5 + confidence / 2.0), dtype=np.float64)


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
