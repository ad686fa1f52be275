"""Ratios of times that were measured in turn, with an interval each. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

DRAWS = 2_000
FEWEST = 6
"""Pairs from which on the interval is a bootstrap's; of fewer it is the lowest to the highest."""


@dataclass(frozen=True)
class Ratio:
    """A median with its interval: 95 % bootstrap, or minimum to maximum of few values."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Compared:
    """What was measured of both, as medians, and the median of their ratios."""

    ours: float
    reference: float
    ratio: Ratio


def spread(values: Sequence[float]) -> Ratio:
    """The median of `values` with its interval; raises ValueError for none."""
    if not values:
        raise ValueError("no values")
    if len(values) < FEWEST:
        return Ratio(median(values), min(values), max(values))
    draws = np.random.default_rng(0).choice(np.asarray(values), (DRAWS, len(values)))
    low, high = np.percentile(np.median(draws, axis=1), (2.5, 97.5))
    return Ratio(median(values), float(low), float(high))


def paired(ours: Sequence[float], reference: Sequence[float]) -> Compared:
    """`reference / ours` of each turn; raises ValueError where the turns do not pair."""
    ratios = [r / o for o, r in zip(ours, reference, strict=True)]
    return Compared(median(ours), median(reference), spread(ratios))


def against_limit(ours: Sequence[float], limit: float) -> Compared:
    """`limit / ours`: at least 1 where the limit is kept."""
    return paired(ours, [limit] * len(ours))


def take_turns(
    contestants: Mapping[str, Callable[[], float]], rounds: int, warmup: int = 1
) -> dict[str, list[float]]:
    """What each contestant returned in each round, warm-up rounds left out."""
    values: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(warmup + rounds):
        for name, run in contestants.items():
            value = run()
            if number >= warmup:
                values[name].append(value)
    return values
