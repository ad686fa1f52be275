"""Step times of the runs of one configuration: their means, medians, and ratios of two samples.

Which runs of two configurations belong together: the same repeat on the same machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from analysis.statistics.intervals import (
    CONFIDENCE,
    FEWEST_STEPS,
    Interval,
    Values,
    finite_values,
    interval_of_runs,
    median,
    ratio_of_pairs,
    ratio_of_runs,
)

FEWEST_PAIRS = 3
"""With fewer pairs, or where less than half of the runs have a partner, runs are compared
unpaired."""
_MOST_CORRELATED = 0.9
_MOST_SKEWED = 2.0
"""That of an exponential distribution: of few steps an estimate may be anything."""


@dataclass(frozen=True)
class Repeat:
    """Which repeat of a configuration a run is, and the machines that it ran on."""

    seed: int
    number: int
    hosts: frozenset[str] = frozenset()
    folder: str = ""
    """Folder of the run, where there are several."""

    def belongs_to(self, other: Repeat) -> bool:
        """Whether both are of one turn of the sweep: one's machines are among the other's."""
        same = (self.seed, self.number, self.folder) == (other.seed, other.number, other.folder)
        return same and (self.hosts <= other.hosts or other.hosts <= self.hosts)


def paired(mine: Sequence[Repeat], theirs: Sequence[Repeat]) -> list[tuple[int, int]]:
    """Positions of the runs that belong together; none where too few do.

    A sweep measures its layouts alternately, so the runs of one repeat share the machine's hour,
    and their ratio is free of it. A repeat that one side lacks, or that ran on another machine, has
    no pair.
    """
    found: list[tuple[int, int]] = []
    taken: set[int] = set()
    for i, one in enumerate(mine):
        partner = next(
            (j for j, other in enumerate(theirs) if j not in taken and one.belongs_to(other)), None
        )
        if partner is not None:
            taken.add(partner)
            found.append((i, partner))
    enough = max(FEWEST_PAIRS, (max(len(mine), len(theirs)) + 1) // 2)
    return found if len(found) >= enough else []


@dataclass(frozen=True)
class Sample:
    """Step times of the runs of one configuration, seconds; a run without steps is left out.

    `repeats` says which repeat each run is, so that another configuration's can be paired with it.
    """

    runs: Sequence[ArrayLike]
    repeats: Sequence[Repeat] = ()

    @cached_property
    def _series(self) -> list[Values]:
        return [finite_values(run) for run in self.runs]

    @cached_property
    def values(self) -> Values:
        """All steps."""
        return np.concatenate(self._series) if self._series else np.empty(0)

    @cached_property
    def means(self) -> Values:
        """One value a run; nan for a run without steps."""
        return np.array([run.mean() if run.size else math.nan for run in self._series])

    @cached_property
    def medians(self) -> Values:
        return np.array([median(run) for run in self._series])

    @cached_property
    def mean(self) -> Interval:
        """The mean of the runs' means."""
        return interval_of_runs(self.means, self.values.size, self._skewness())

    def _skewness(self) -> float:
        """Skewness of the runs' means, from as many steps of each as the shortest run has."""
        runs = [run for run in self._series if run.size]
        if len(runs) < 2:
            return 0.0
        steps = np.stack([run[: min(map(len, runs))] for run in runs])
        if not (steps > 0.0).all():
            return 0.0
        spread = np.log([run.mean() for run in runs]).std(ddof=1)
        return float(skewness_of_means(steps, np.asarray(spread)))

    @cached_property
    def median(self) -> Interval:
        """The mean of the runs' medians."""
        return interval_of_runs(self.medians, self.values.size)

    def over(
        self,
        other: Sample,
        factor: float = 1.0,
        of: str = "mean",
        confidence: float = CONFIDENCE,
        *,
        by_ranks: bool = False,
    ) -> Interval:
        """`factor` times these means (or medians) over the other's, with the ratio's interval.

        It is the geometric mean of the pairs' ratios; without pairs the ratio of geometric means.
        `by_ranks`: of enough pairs the interval that a few disturbed ones do not widen.
        """
        mine, theirs = (one.means if of == "mean" else one.medians for one in (self, other))
        steps = min(self.values.size, other.values.size)
        pairs = paired(self.repeats, other.repeats)
        if not pairs:
            runs = finite_values(mine), finite_values(theirs)
            return ratio_of_runs(*runs, factor, steps, confidence)
        ours, others = (list(side) for side in zip(*pairs, strict=True))
        of_pairs = mine[ours], theirs[others]
        return ratio_of_pairs(*of_pairs, factor, steps, confidence, by_ranks=by_ranks)


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
