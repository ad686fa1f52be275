"""How many times as long things take in run B as in run A, and what may be said of it.

Many ratios are looked at together, so each has an interval of a confidence at which all of them
hold together (Bonferroni's inequality; Dunn 1961, Journal of the American Statistical Association
56:52): of equal runs at most one in forty has a ratio that is called slower. Of eight pairs or more
intervals are by signed ranks, so that a few repeats in which other work had the machine do not hide
a difference that all others show.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from analysis.stats.intervals import FEWEST_STEPS, Interval, Sample
from gnnhpc.core.student_t import CONFIDENCE

SLOWER = "slower"
TOLERATED = "slower, not shown to be beyond the tolerance"
FASTER = "faster"
NO_DIFFERENCE = "no difference shown"


@dataclass(frozen=True)
class Pair:
    """What is compared: seconds of one thing in both runs."""

    name: str
    """Of the configuration."""
    phase: str
    what: str
    """`step`, or the name of a group of layers."""
    a: Sample
    b: Sample

    @property
    def tells(self) -> bool:
        """Whether there is an interval of the ratio."""
        return all(
            len(side.runs) > 1 and side.values.size >= FEWEST_STEPS for side in (self.a, self.b)
        )


@dataclass(frozen=True)
class Compared:
    """A pair with the ratio of B over A, which has no bounds where runs do not tell them."""

    pair: Pair
    ratio: Interval

    @property
    def name(self) -> str:
        return self.pair.name

    def turned_by_averages(self, of: str) -> bool:
        """Whether the averages of the runs are the other way round than the ratio.

        The ratio is geometric, over pairs where there are some, so a run far from the others moves
        it less than the averages.
        """
        over = seconds_of(self.pair.b, of) - seconds_of(self.pair.a, of)
        return over * (self.ratio.value - 1.0) < 0.0

    def verdict(self, tolerance: float) -> str:
        """In words; one run a side has none."""
        low, high = self.ratio.low, self.ratio.high
        if low is None or high is None:
            return self.ratio.basis
        if low > 1.0 + tolerance:
            return SLOWER
        if low > 1.0:
            return TOLERATED
        return FASTER if high < 1.0 else NO_DIFFERENCE


def compare_pairs(
    pairs: Sequence[Pair], of: str = "mean", *, among: int | None = None
) -> list[Compared]:
    """The ratio of each, with intervals that hold together; `of` is `mean` or `median` of steps.

    `among`: how many intervals hold together, where these are not all.
    """
    looks = sum(pair.tells for pair in pairs) if among is None else among
    confidence = 1.0 - (1.0 - CONFIDENCE) / max(1, looks)
    found = []
    for pair in pairs:
        over = pair.b.mean_over if of == "mean" else pair.b.median_over
        found.append(Compared(pair, over(pair.a, confidence=confidence, by_ranks=True)))
    return found


def compared_frame(rows: Sequence[Compared], tolerance: float, of: str = "mean") -> pd.DataFrame:
    """One row a comparison: seconds in A and in B, the ratio, its interval and the verdict."""
    return pd.DataFrame(
        [
            {
                "cell": row.name,
                "phase": row.pair.phase,
                "what": row.pair.what,
                "runs": f"{len(row.pair.a.runs)}, {len(row.pair.b.runs)}",
                "a_s": seconds_of(row.pair.a, of),
                "b_s": seconds_of(row.pair.b, of),
                "b_over_a": row.ratio.value,
                "low": row.ratio.low,
                "high": row.ratio.high,
                "from": row.ratio.basis if row.ratio.low is not None else "",
                "verdict": row.verdict(tolerance),
            }
            for row in rows
        ]
    )


def seconds_of(sample: Sample, of: str) -> float:
    """The mean over runs of their means or medians."""
    return (sample.mean if of == "mean" else sample.median).value
