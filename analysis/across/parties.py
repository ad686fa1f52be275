"""Who left whom: siblings that disagree are parties, and a majority may name the others.

A majority acquits itself only if one of its own is as plain as those whom it names: a pipeline
that is wrong is wrong in every layout, and would otherwise outvote the sequential run that is
right. Without such a majority nobody is acquitted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from analysis.across.sibling import Departure, Sibling

Leaves = Callable[[int, Sequence[int]], list[Departure | None]]
"""(reference, others) -> where each of the others leaves the reference."""


@dataclass(frozen=True)
class Accusation:
    """A sibling that is named, where it leaves another, and how the sides stand."""

    sibling: Sibling
    other: Sibling
    departure: Departure
    agreeing: int
    """Siblings on the named one's side, itself included."""
    against: int
    """Siblings on the other's side."""
    acquitted: bool
    """Whether the other side is a majority that is believed."""


@dataclass(frozen=True)
class Judgement:
    """Who is named, and who stays with the majority or, if nobody is named, with everybody."""

    accusations: list[Accusation]
    agreeing: list[int]


def judge(siblings: Sequence[Sibling], leaves: Leaves) -> Judgement:
    """Divide siblings into parties that agree, and name those that have left."""
    parties = _parties(siblings, leaves)
    if len(parties) == 1:
        return Judgement([], parties[0])
    votes = _votes(siblings)
    largest = max(parties, key=lambda party: sum(votes[i] for i in party))
    outside = [i for i in range(len(siblings)) if i not in largest]
    left = dict(zip(outside, leaves(largest[0], outside), strict=True))
    # One that has left an earlier party may still be within rounding of this one.
    believed = largest + [i for i in outside if left[i] is None]
    named = {i: gone for i, gone in left.items() if gone is not None}
    majority = 2 * sum(votes[i] for i in believed) > sum(votes)
    plain = all(any(siblings[y].is_as_plain_as(siblings[x]) for y in believed) for x in named)
    if not (majority and plain):
        return Judgement(_accuse_all(siblings, parties, leaves), [])
    sides = {i: len(party) for party in parties for i in party}
    accusations = [
        Accusation(siblings[i], siblings[largest[0]], gone, sides[i], len(believed), True)
        for i, gone in named.items()
    ]
    return Judgement(accusations, believed)


def _accuse_all(
    siblings: Sequence[Sibling], parties: Sequence[Sequence[int]], leaves: Leaves
) -> list[Accusation]:
    """Each sibling beside the first party that it is not of and that it leaves."""
    accusations: dict[int, Accusation] = {}
    for party in parties:
        others = [i for i in range(len(siblings)) if i not in party and i not in accusations]
        for i, gone in zip(others, leaves(party[0], others), strict=True):
            if gone is not None:
                mine = next(len(own) for own in parties if i in own)
                accusations[i] = Accusation(
                    siblings[i], siblings[party[0]], gone, mine, len(party), False
                )
    return [accusations[i] for i in sorted(accusations)]


def _parties(siblings: Sequence[Sibling], leaves: Leaves) -> list[list[int]]:
    """Each party is a reference, the plainest that is left, and those that stay with it."""
    left = sorted(range(len(siblings)), key=lambda i: siblings[i].plainness, reverse=True)
    parties = []
    while left:
        reference, others = left[0], left[1:]
        departures = leaves(reference, others)
        parties.append(
            [reference, *(i for i, gone in zip(others, departures, strict=True) if gone is None)]
        )
        left = [i for i, gone in zip(others, departures, strict=True) if gone is not None]
    return parties


def _votes(siblings: Sequence[Sibling]) -> list[Fraction]:
    """A vote for each configuration, shared by its members: repeats repeat the same mistake."""
    members = Counter(each.configuration for each in siblings)
    return [Fraction(1, members[each.configuration]) for each in siblings]
