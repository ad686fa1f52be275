"""Finds a stretch of steps at another level than the rest, with a known rate of false alarms.

The statistic is that of circular binary segmentation (Olshen, Venkatraman, Lucito and Wigler 2004,
Biostatistics 5:557): over all stretches, the largest Student's t between the logarithms inside and
outside. It finds a slow middle as well as a slow end. Logarithms are used because noise is
relative.

The limits are simulated: of normal steps at one level whose neighbours are correlated by 0.7, one
series in 200 exceeds the limit. Less correlated steps exceed it less often. Single slow steps do
too, because they add more to the spread than to a mean and little to the median.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FEWEST_STEPS = 9
_SHORTEST = 3
"""The fewest blocks of a stretch, and of the rest."""
_MOST_BLOCKS = 30
"""A longer series is cut into blocks of an odd number of steps, each represented by its median:
medians are less correlated than steps."""
_LIMITS = {1: 10.4, 3: 8.8, 5: 7.1, 7: 6.3, 9: 6.1, 11: 5.8, 15: 5.6, 21: 5.4}
"""The statistic's 0.995 quantile by the least number of steps a block."""


@dataclass(frozen=True)
class Stretch:
    """Steps `first` up to `stop`, exclusive, counted from 0: those that differ most from the rest.

    The stretch never contains the first step: where a beginning differs, the stretch is what
    follows it.
    """

    first: int
    stop: int
    change: float
    """Median inside over median outside, less 1: a few slow steps do not make a slow stretch."""
    statistic: float
    limit: float

    @property
    def beyond_chance(self) -> bool:
        return self.statistic > self.limit


def most_different_stretch(seconds: Sequence[float]) -> Stretch | None:
    """Return the stretch with the largest t; None for fewer than 9 steps or times that are not
    positive numbers.

    A slow or fast beginning of up to a fifth of the steps is not a stretch: a report treats it as
    warm-up.
    """
    times = np.asarray(seconds, dtype=np.float64)
    if times.size < FEWEST_STEPS or not (np.isfinite(times) & (times > 0)).all():
        return None
    logs = np.log(times)
    size = -(-times.size // _MOST_BLOCKS) // 2 * 2 + 1
    blocks = np.array_split(logs, times.size // size)
    edges = np.cumsum([0, *(block.size for block in blocks)])
    first, stop = _stretches(len(blocks))
    t = _student(np.array([np.median(block) for block in blocks]), first, stop)
    best = int(np.argmax(t))
    start, end = int(edges[first[best]]), int(edges[stop[best]])
    inside = np.zeros(times.size, dtype=np.bool_)
    inside[start:end] = True
    change = float(np.median(times[inside]) / np.median(times[~inside]) - 1)
    limit = next(limit for least, limit in reversed(_LIMITS.items()) if size >= least)
    return Stretch(start, end, change, float(t[best]), limit)


def _stretches(blocks: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """The first block and the end of every stretch; a beginning is the rest of an end."""
    longest_warmup = max(_SHORTEST, blocks // 5 + 1)
    pairs = [
        (first, stop)
        for first in range(1, blocks)
        for stop in range(first + _SHORTEST, blocks + 1)
        if blocks - (stop - first) >= (longest_warmup if stop == blocks else _SHORTEST)
    ]
    ends = np.array(pairs, dtype=np.intp)
    return ends[:, 0], ends[:, 1]


def _student(
    values: npt.NDArray[np.float64], first: npt.NDArray[np.intp], stop: npt.NDArray[np.intp]
) -> npt.NDArray[np.float64]:
    """Student's t of each stretch against the rest, with their common variance."""
    centred = values - values.mean()
    sums = np.concatenate([[0.0], np.cumsum(centred)])
    inside, length = sums[stop] - sums[first], stop - first
    between = inside**2 * (1 / length + 1 / (values.size - length))
    # The rounding of the logarithms is added, so that equal times are at one level.
    rounding = values.size * (np.finfo(np.float64).eps * max(1.0, float(np.abs(values).max()))) ** 2
    within = np.maximum(centred @ centred - between, 0.0) + rounding
    student: npt.NDArray[np.float64] = np.sqrt(between / (within / (values.size - 2)))
    return student
