"""Finds a stretch of steps at another level than the rest, with a known rate of false alarms.

The statistic is that of circular binary segmentation (Olshen, Venkatraman, Lucito and Wigler 2004,
Biostatistics 5:557): over all stretches, the largest Student's t between the logarithms inside and
outside. It finds a slow middle as well as a slow end.

Steps are joined to blocks of at least 0.1 s, because what disturbs steps of a few milliseconds, as
another process in the scheduler's turn, lasts for many of them. A run that is too short for nine
blocks shows no drift. Free of torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gnnhpc.records.schema import Check
from gnnhpc.validation.audit.rank_records import AttemptRecords

DRIFT = 0.05
"""Change of the step time in a stretch of the run below which it is no drift."""
BLOCK_S = 0.1
"""The least duration of a block: Linux's period of a limit to a job's CPU time, the longest of the
scheduler's periods."""
FEWEST_BLOCKS, MOST_BLOCKS = 9, 30
"""A block has an odd number of steps and is represented by its median: medians are less correlated
than steps."""
SHORTEST = 3
"""The fewest blocks of a stretch, and of the rest."""
LIMIT, LIMIT_OF_MEDIANS = 10.4, 7.1
"""The statistic's 0.995 quantile, simulated for normal steps at one level whose neighbours are
correlated by 0.7; and that of 15 blocks or more of 5 steps or more."""
_ROUNDING = 1e-24
"""The squares of the rounding of logarithms, so that equal times are at one level."""


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
    beyond_chance: bool


def drift(attempt: AttemptRecords) -> Check:
    """Flags a stretch of training steps that differs from the rest by more than chance."""
    measured = zip(attempt.ranks[0].steps, attempt.ranks[0].measured, strict=True)
    steps = [step.wall_s for step, counts in measured if counts and step.phase == "train"]
    stretch = most_different_stretch(steps)
    if stretch is None:
        short = f"{len(steps)} steps of {sum(steps):.3g} s together are too few to find a drift"
        return Check("drift", "unknown", short)
    if not stretch.beyond_chance or abs(stretch.change) <= DRIFT:
        return Check("drift", "ok", "no stretch of the run differs more than steps do")
    until = "on" if stretch.stop == len(steps) else f"to step {stretch.stop}"
    detail = (
        f"from step {stretch.first + 1} {until}, of {len(steps)} after the warm-up, steps took "
        f"{stretch.change:+.0%}"
    )
    return Check("drift", "suspect", detail)


def most_different_stretch(seconds: Sequence[float]) -> Stretch | None:
    """Return the stretch with the largest t; None for fewer than 9 blocks or times that are not
    positive numbers."""
    times = np.asarray(seconds, dtype=np.float64)
    if not times.size or not (np.isfinite(times) & (times > 0)).all():
        return None
    # The next odd number.
    size = math.ceil(max(times.size / MOST_BLOCKS, BLOCK_S / float(np.median(times)))) // 2 * 2 + 1
    if times.size // size < FEWEST_BLOCKS:
        return None
    blocks = np.array_split(times, times.size // size)
    values = np.log([np.median(block) for block in blocks])
    first, stop = _stretches(len(blocks))
    t = _student(values, first, stop)
    best = int(np.argmax(t))
    edges = np.cumsum([0, *(block.size for block in blocks)])
    inside = slice(int(edges[first[best]]), int(edges[stop[best]]))
    outside = np.concatenate((times[: inside.start], times[inside.stop :]))
    change = float(np.median(times[inside]) / np.median(outside) - 1)
    limit = LIMIT_OF_MEDIANS if size >= 5 and len(blocks) >= MOST_BLOCKS // 2 else LIMIT
    return Stretch(inside.start, inside.stop, change, bool(t[best] > limit))


def _stretches(blocks: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """The first block and the end of every stretch; a beginning is the rest of an end.

    A beginning of up to a fifth of the blocks is none: a report treats it as warm-up.
    """
    longest_warmup = max(SHORTEST, blocks // 5 + 1)
    pairs = [
        (first, stop)
        for first in range(1, blocks)
        for stop in range(first + SHORTEST, blocks + 1)
        if blocks - (stop - first) >= (longest_warmup if stop == blocks else SHORTEST)
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
    within = np.maximum(centred @ centred - between, 0.0) + _ROUNDING
    student: npt.NDArray[np.float64] = np.sqrt(between / (within / (values.size - 2)))
    return student
