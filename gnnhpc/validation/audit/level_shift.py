"""Finds a stretch of steps at another level than the rest, with a known rate of false alarms.

The statistic is that of circular binary segmentation (Olshen, Venkatraman, Lucito and Wigler 2004,
Biostatistics 5:557): over all stretches, the largest Student's t between the logarithms inside and
outside. It finds a slow middle as well as a slow end. Logarithms are used because noise is
relative.

Steps are joined to blocks of at least 0.1 s. What disturbs steps of a few milliseconds, as another
process in the scheduler's turn, lasts for many of them: it is a level of its own among steps, and
noise among blocks. A run that is too short for nine blocks shows no drift.

The limits are simulated: of normal steps at one level whose neighbours are correlated by 0.7, one
series in 200 exceeds the limit. Less correlated steps exceed it less often. Single slow steps do
too, because they add more to the spread than to a mean and little to the median.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

BLOCK_S = 0.1
"""The least duration of a block: Linux's period of a limit to a job's CPU time, the longest of the
scheduler's periods."""
FEWEST_BLOCKS, _MOST_BLOCKS = 9, 30
"""A block has an odd number of steps and is represented by its median: medians are less correlated
than steps."""
_SHORTEST = 3
"""The fewest blocks of a stretch, and of the rest."""
_LIMITS = {1: 10.4, 3: 8.8, 5: 7.1, 7: 6.3, 9: 6.1, 11: 5.8, 15: 5.6, 21: 5.4}
"""The statistic's 0.995 quantile by the least number of steps a block, of 15 blocks or more; fewer
blocks have the first limit."""


@dataclass(frozen=True)
class Stretch:
    """Steps `first` up to `stop`, exclusive, counted from 0: those that differ most from the rest.

    The stretch never contains the first step: where a beginning differs, the stretch is what
    follows it. Of a slope the stretch is the second half.
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
    """Return the stretch with the largest t; None for fewer than 9 blocks or times that are not
    positive numbers.

    A slow or fast beginning of up to a fifth of the steps is not a stretch: a report treats it as
    warm-up.
    """
    times = np.asarray(seconds, dtype=np.float64)
    if not times.size or not (np.isfinite(times) & (times > 0)).all():
        return None
    logs = np.log(times)
    # The next odd number.
    size = math.ceil(max(times.size / _MOST_BLOCKS, BLOCK_S / float(np.median(times)))) // 2 * 2 + 1
    if times.size // size < FEWEST_BLOCKS:
        return None
    blocks = np.array_split(logs, times.size // size)
    edges = np.cumsum([0, *(block.size for block in blocks)])
    first, stop = _stretches(len(blocks))
    values = np.array([np.median(block) for block in blocks])
    t = _student(values, first, stop)
    best = int(np.argmax(t))
    start, end, statistic = int(edges[first[best]]), int(edges[stop[best]]), float(t[best])
    if (of_line := _student_of_line(values)) > statistic:
        start, end, statistic = int(edges[len(blocks) // 2]), times.size, of_line
    inside = np.zeros(times.size, dtype=np.bool_)
    inside[start:end] = True
    change = float(np.median(times[inside]) / np.median(times[~inside]) - 1)
    joined = size if len(blocks) >= _MOST_BLOCKS // 2 else 1
    limit = next(limit for least, limit in reversed(_LIMITS.items()) if joined >= least)
    return Stretch(start, end, change, statistic, limit)


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


def _student_of_line(values: npt.NDArray[np.float64]) -> float:
    """Student's t of the slope of a straight line through the values, without its sign."""
    together = (
        abs(float(np.corrcoef(values, np.arange(values.size))[0, 1])) if np.ptp(values) else 0
    )
    return math.sqrt((values.size - 2) * together**2 / max(1 - together**2, 1e-12))
