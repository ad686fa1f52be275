"""Groups of layers in run B over run A: by their seconds, and beside the others of the same steps.

A machine that is slow for a second slows all layers of that second. The seconds of one group over
those of the other groups of the same step are free of it, so they show a small change of one layer
where seconds alone need many more repeats. They cannot tell one layer that became slower from
others that became faster; the seconds of both decide that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.compare.layer_groups import Seconds, group_pairs
from analysis.compare.matched import Match
from analysis.compare.ratios import SLOWER, Compared, compare_pairs, compared_frame

BESIDE = "slower beside the other layers of the same steps"


@dataclass(frozen=True)
class ComparedGroup:
    """One group of layers of a configuration, in training."""

    seconds: Compared
    beside: Compared | None
    """Seconds over those of the other groups of the same step; None where there are no others."""
    others: Compared | None
    """Seconds of the other groups."""

    @property
    def name(self) -> str:
        """Of the configuration."""
        return self.seconds.name

    @property
    def what(self) -> str:
        return self.seconds.pair.what

    def shown_by(self, tolerance: float) -> Compared | None:
        """What shows it slower than is tolerated: its seconds, or how it stands beside the others.

        The second only where its own seconds agree, as far as one number does, and the others'
        are not shown to have become less.
        """
        if self.seconds.verdict(tolerance) == SLOWER:
            return self.seconds
        if self.beside is None or self.others is None:
            return None
        others_are_faster = self.others.ratio.high is not None and self.others.ratio.high < 1.0
        agrees = self.seconds.ratio.value > 1.0 and not others_are_faster
        return self.beside if agrees and self.beside.verdict(tolerance) == SLOWER else None

    def verdict(self, tolerance: float) -> str:
        """In words."""
        shown = self.shown_by(tolerance)
        return BESIDE if shown is self.beside is not None else self.seconds.verdict(tolerance)


def compare_groups(
    matches: Sequence[Match], a: Seconds, b: Seconds, of: str
) -> list[ComparedGroup]:
    """Each group that both runs recorded; all intervals of slower groups hold together.

    Seconds are compared by `of`; what stands beside the others by its median, as one slow moment
    falls upon one group.
    """
    pairs = group_pairs(matches, a, b)
    beside = group_pairs(matches, over_others(a), over_others(b))
    others = group_pairs(matches, seconds_of_others(a), seconds_of_others(b))
    looks = sum(pair.tells for pair in (*pairs, *beside))
    by_group = {
        (row.name, row.pair.what): row for row in compare_pairs(beside, "median", among=looks)
    }
    others_by_group = {(row.name, row.pair.what): row for row in compare_pairs(others, of)}
    return [
        ComparedGroup(row, by_group.get(key), others_by_group.get(key))
        for row in compare_pairs(pairs, of, among=looks)
        for key in [(row.name, row.pair.what)]
    ]


def seconds_of_others(seconds: Seconds) -> Seconds:
    """Of each group, what the other groups of the same cell took in the same steps."""
    return {
        (cell, group): total - mine
        for cell, (groups, total) in _cells(seconds).items()
        for group, mine in groups.items()
    }


def over_others(seconds: Seconds) -> Seconds:
    """Each group's seconds over those of the other groups, step by step."""
    others = seconds_of_others(seconds)
    return {key: seconds[key] / other for key, other in others.items() if (other > 0.0).all()}


def _cells(
    seconds: Seconds,
) -> Mapping[str, tuple[dict[str, NDArray[np.float64]], NDArray[np.float64]]]:
    """Groups of each cell and their sum a step; of cells with two groups or more in every step."""
    by_cell: dict[str, dict[str, NDArray[np.float64]]] = {}
    for (cell, group), values in seconds.items():
        by_cell.setdefault(cell, {})[group] = values
    return {
        cell: (groups, np.sum(list(groups.values()), axis=0))
        for cell, groups in by_cell.items()
        if len(groups) > 1 and len({values.size for values in groups.values()}) == 1
    }


def groups_frame(rows: Sequence[ComparedGroup], tolerance: float, of: str) -> pd.DataFrame:
    """One row a group: seconds in A and B, their ratio, and the ratio beside the others."""
    frame = compared_frame([row.seconds for row in rows], tolerance, of)
    if frame.empty:
        return frame
    ratios = [row.beside.ratio if row.beside else None for row in rows]
    frame["beside_others"] = [ratio.value if ratio else None for ratio in ratios]
    frame["beside_low"] = [ratio.low if ratio else None for ratio in ratios]
    frame["beside_high"] = [ratio.high if ratio else None for ratio in ratios]
    frame["verdict"] = [row.verdict(tolerance) for row in rows]
    return frame
