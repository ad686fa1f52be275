"""An interval of paired differences that a few disturbed pairs do not widen. Pure functions.

The centre is the median of all averages of two differences, and the interval is of those averages
whose signed-rank statistic is not rejected (Hodges and Lehmann 1963, Annals of Mathematical
Statistics 34:598; Wilcoxon 1945, Biometrics Bulletin 1:80). It holds as often as it says for every
distribution that is symmetric, whatever its tails.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]


def signed_rank_interval(
    differences: Values, confidence: float
) -> tuple[float, float, float] | None:
    """Centre, lower and upper bound; None for pairs too few to have bounds of this confidence."""
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
