"""Compares all siblings of a run: cells, and attempts at one cell, that must learn the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from analysis.across.departures import Family
from analysis.across.likeness import in_words
from analysis.across.parties import Accusation, Leaves, judge
from analysis.across.sibling import Sibling


@dataclass(frozen=True)
class Siblings:
    """What comparing siblings found."""

    accusations: list[Accusation] = field(default_factory=list)
    """One a sibling that is named."""
    families: int = 0
    """Sets of two or more that must learn the same."""
    compared: frozenset[str] = frozenset()
    """Cells that have a sibling."""
    steps: tuple[int, int] = (0, 0)
    """The fewest and the most training steps over which a cell was held against another."""


def compare_siblings(
    siblings: Iterable[Sibling], training_keys: Sequence[str], evaluation_keys: Sequence[str]
) -> Siblings:
    """Judge each family; keys are those of `sibling_key`, one for each sibling.

    Evaluation is compared among those whose training agrees.
    """
    members = list(siblings)
    families: dict[str, list[Sibling]] = {}
    tested_alike: dict[str, str] = {}
    for sibling, key, evaluation in zip(members, training_keys, evaluation_keys, strict=True):
        families.setdefault(key, []).append(sibling)
        tested_alike[sibling.name] = evaluation
    families = {key: held for key, held in families.items() if len(held) > 1}
    accusations: list[Accusation] = []
    steps: dict[str, int] = {}
    for held in families.values():
        named, agreeing = _judge_closely(held, lambda family: family.in_training, steps)
        accusations += named
        for same in _grouped(agreeing, [tested_alike[one.name] for one in agreeing]):
            accusations += _judge_closely(same, lambda family: family.in_evaluation, {})[0]
    return Siblings(
        accusations,
        len(families),
        frozenset(one.cell for held in families.values() for one in held),
        (min(steps.values(), default=0), max(steps.values(), default=0)),
    )


def _judge_closely(
    members: list[Sibling], how: Callable[[Family], Leaves], steps: dict[str, int]
) -> tuple[list[Accusation], list[Sibling]]:
    """Who is named, and who agrees; `steps` gets how many were judged of each.

    All are judged together, then those that share a way of computing, ever more closely: rounding
    takes these apart later, so more of their steps can be judged.
    """
    accusations: list[Accusation] = []
    parts = [members]
    for level in range(-1, len(members[0].ways)):
        if level >= 0:
            parts = [
                same for part in parts for same in _grouped(part, [one.ways[level] for one in part])
            ]
        for number, part in enumerate(parts):
            if len(part) < 2:
                continue
            family = Family(part)
            for one, judged in zip(part[1:], family.steps_judged()[1:], strict=True):
                for each in (part[0], one):
                    steps[each.name] = max(steps.get(each.name, 0), judged)
            found = judge(part, how(family))
            accusations += found.accusations
            parts[number] = [part[i] for i in found.agreeing]
    return accusations, [one for part in parts for one in part]


def _grouped(siblings: Sequence[Sibling], keys: Sequence[str]) -> list[list[Sibling]]:
    groups: dict[str, list[Sibling]] = {}
    for one, key in zip(siblings, keys, strict=True):
        groups.setdefault(key, []).append(one)
    return list(groups.values())


def in_sentences(accusation: Accusation) -> str:
    """Which step, by how much, which side is alone, and what is the likeliest cause."""
    mine, other, departure = accusation.sibling, accusation.other, accusation.departure
    if not accusation.acquitted:
        sides = (
            f"{accusation.agreeing} on this side, {accusation.against} on that, and no majority "
            "with a run as plain as the others: nobody is acquitted"
        )
    elif accusation.agreeing == 1:
        sides = f"alone against {accusation.against} that agree"
    else:
        sides = f"{accusation.agreeing} agree in this against {accusation.against}"
    unlike = in_words(mine.facts, other.facts)
    parts = [
        f"attempt {mine.attempt}: {departure.words} (there: {other.name})",
        sides,
        departure.likely_cause,
        *([f"unlike: {unlike}"] if unlike else []),
    ]
    return "; ".join(parts)
