"""A few settings in which every two values of two different axes meet at least once."""

from __future__ import annotations

import itertools
from collections.abc import Sequence


def pairwise_cover(axes: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """Settings, one value an axis, that hold all pairs of values; far fewer than all settings.

    Greedy: the setting with the most pairs that no setting before it has comes next.
    """
    settings = list(itertools.product(*axes))
    wanted = set().union(*map(pairs_of, settings))
    chosen = []
    while wanted:
        best = max(settings, key=lambda setting: len(pairs_of(setting) & wanted))
        wanted -= pairs_of(best)
        chosen.append(best)
    return chosen


def pairs_of(setting: tuple[str, ...]) -> set[tuple[tuple[int, str], tuple[int, str]]]:
    """The pairs of (axis, value) that meet in a setting."""
    return set(itertools.combinations(enumerate(setting), 2))
