"""Compares all siblings of a run: cells, and attempts at one cell, that must learn the same."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from analysis.across.departures import Family
from analysis.across.likeness import in_words
from analysis.across.parties import Accusation, judge
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
    fewest_steps: int | None = None
    """Training steps judged of the pair that rounding took apart soonest; None if of all, all."""


def compare_siblings(
    siblings: Iterable[Sibling], training_keys: Sequence[str], evaluation_keys: Sequence[str]
) -> Siblings:
    """Judge each family; keys are those of `sibling_key`, one for each sibling.

    Evaluation is compared among those whose training agrees.
    """
    members = list(siblings)
    families: dict[str, list[int]] = {}
    for number, key in enumerate(training_keys):
        families.setdefault(key, []).append(number)
    families = {key: held for key, held in families.items() if len(held) > 1}
    accusations: list[Accusation] = []
    concluded: list[int | None] = []
    for held in families.values():
        family = Family([members[i] for i in held])
        training = judge(family.siblings, family.in_training)
        accusations += training.accusations
        if training.agreeing:
            concluded.append(family.fewest_concluded(training.agreeing))
        same_evaluation: dict[str, list[Sibling]] = {}
        for i in training.agreeing:
            same_evaluation.setdefault(evaluation_keys[held[i]], []).append(family.siblings[i])
        for alike in same_evaluation.values():
            tested = Family(alike)
            accusations += judge(alike, tested.in_evaluation).accusations
    return Siblings(
        accusations,
        len(families),
        frozenset(members[i].cell for held in families.values() for i in held),
        min((steps for steps in concluded if steps is not None), default=None),
    )


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
