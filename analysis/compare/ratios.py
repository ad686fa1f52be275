"""How many times as long things take in run B as in run A, and what may be said of it.

Many ratios are looked at together, so each has an interval of a confidence at which all of them
hold together (Bonferroni's inequality; Dunn 1961, Journal of the American Statistical Association
56:52): of equal runs at most one in forty has a ratio that is called slower.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pandas as pd

from analysis.compare.matched import Match
from analysis.stats.intervals import FEWEST_STEPS, Interval, Sample
from analysis.stats.pairs import paired
from gnnhpc.core.student_t import CONFIDENCE

SLOWER = "slower"
TOLERATED = "slower, not shown to be beyond the tolerance"
FASTER = "faster"
NO_DIFFERENCE = "no difference shown"


@dataclass(frozen=True)
class Compared:
    """Seconds of one thing in two runs."""

    match: Match
    what: str
    """`step`, or the name of a group of layers."""
    a: Sample
    b: Sample
    ratio: Interval
    """B over A; without bounds where runs do not tell them."""

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


def compare_samples(
    matches: Sequence[tuple[Match, str, Sample, Sample]], of: str = "mean"
) -> list[Compared]:
    """The ratio of each, B over A, with intervals that hold together.

    Runs whose repeats were measured in turn are compared in pairs, others as groups. `of` is
    `mean` or `median`, of the steps of each run.
    """
    looked_at = sum(_tells(a) and _tells(b) for _, _, a, b in matches)
    confidence = 1.0 - (1.0 - CONFIDENCE) / max(1, looked_at)
    found = []
    for match, what, mine, other in matches:
        a, b = (mine, other) if in_turn(match) else (_alone(mine), _alone(other))
        over = b.mean_over if of == "mean" else b.median_over
        found.append(Compared(match, what, a, b, over(a, confidence=confidence)))
    return found


def _tells(sample: Sample) -> bool:
    """Whether the sample gives an interval."""
    return len(sample.runs) > 1 and sample.values.size >= FEWEST_STEPS


def _alone(sample: Sample) -> Sample:
    return replace(sample, repeats=())


def in_turn(match: Match) -> bool:
    """Whether the repeats of both runs were measured in turn: A's first, B's first, A's second, ...

    Only then is a repeat a pair; that of runs which were measured one after the other would be an
    accident.
    """
    pairs = paired(match.a.sample.repeats, match.b.sample.repeats)
    started = [list(one.used["started_at"]) for one in (match.a, match.b)]
    turns = sorted(sorted((started[0][i], started[1][j])) for i, j in pairs)
    ordered = [time for turn in turns for time in turn]
    return bool(turns) and all(ordered) and ordered == sorted(set(ordered))


def compared_frame(rows: Sequence[Compared], tolerance: float) -> pd.DataFrame:
    """One row a comparison: seconds in A and in B, the ratio, its interval and the verdict."""
    return pd.DataFrame(
        [
            {
                "cell": row.match.name,
                "phase": row.match.phase,
                "what": row.what,
                "runs": f"{len(row.a.runs)}, {len(row.b.runs)}",
                "a_s": row.a.mean.value,
                "b_s": row.b.mean.value,
                "b_over_a": row.ratio.value,
                "low": row.ratio.low,
                "high": row.ratio.high,
                "from": row.ratio.basis if row.ratio.low is not None else "",
                "verdict": row.verdict(tolerance),
            }
            for row in rows
        ]
    )
