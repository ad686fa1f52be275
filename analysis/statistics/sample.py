"""Step times of the runs of one configuration: their means, medians, and ratios of two samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from analysis.statistics.intervals import (
    Interval,
    Values,
    finite_values,
    interval_of_runs,
    median,
    ratio_of_pairs,
    ratio_of_runs,
)
from analysis.statistics.pairs import Repeat, paired
from analysis.statistics.power import CONFIDENCE
from analysis.statistics.skewness import skewness_of_means


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
