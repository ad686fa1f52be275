"""Central differences of a loss, held against its gradient: which ones contradict it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

TOLERANCE = 0.01
"""Of how much the loss is expected to change."""
STRAIGHT, APART = 0.25, 5.0
"""Of how far two differences are from what the gradient says, a length, by how much they may differ
from each other where the loss is straight: of two whose lengths are so many times as large as each
other. Near kinks how far they are off shrinks as they do."""
SIDES = 0.5
"""And by how much a difference may be off otherwise ahead than back; the loss is curved too."""
CHANGES = (2e-3, 2e-4, 2e-5)
"""By how much of it the loss is to change along its gradient. A larger change is less straight, and
a smaller one more hidden by rounding: the gradient has to be right for one of them."""
HIDDEN = 200.0
"""How many times what rounding hides such a change has to be."""
RANDOM_LENGTH, RANDOM_APART = 2e-4, 6.0
"""In a random direction: of each parameter's size, and how many times as far or less if
that is not straight."""
RANDOM_HIDDEN = 50.0
"""As HIDDEN: a random direction changes the loss less for its length."""
FAR = 1.0
"""Of how much the loss is expected to change: a curved one is off by less of it, as lengths become
smaller."""
MOST_CHANGE, MOST_LENGTH = 0.1, 0.02
"""Of the loss, and of the parameters: what changes them by more tells nothing of a slope."""


@dataclass(frozen=True)
class Difference:
    """Of the losses where parameters were moved by `length` and back by as much."""

    length: float
    found: float
    expected: float
    """By the gradient."""
    size: float
    """How large one is expected to be in such a direction: what an error is a share of."""
    hidden: float
    """How much of it rounding may be."""
    ahead: float | None = None
    """How much of what is found otherwise than expected lies ahead; None where half of it does."""

    @property
    def error(self) -> float:
        """Of `size`; no number where nothing is expected to change."""
        return (self.found - self.expected) / self.size if self.size else math.nan

    @property
    def off(self) -> float:
        """The slope that the gradient has not."""
        return (self.found - self.expected) / self.length

    @property
    def is_straight(self) -> bool:
        """Whether as much is off ahead as back: of a kink nearly all is on its side."""
        if self.ahead is None:
            return True
        back = self.found - self.expected - self.ahead
        return abs(self.ahead - back) <= SIDES * min(abs(self.ahead), abs(back))

    @property
    def is_right(self) -> bool:
        return abs(self.found - self.expected) <= TOLERANCE * self.size + self.hidden

    @property
    def is_far_off(self) -> bool:
        return abs(self.found - self.expected) > FAR * self.size + self.hidden


def contradiction(differences: Sequence[Difference]) -> Difference | None:
    """The smallest difference, if it contradicts the gradient; None where one does not, or where
    the loss is not straight over it and a larger one.
    """
    if not differences or any(each.is_right for each in differences):
        return None
    least = min(differences, key=lambda each: each.length)
    if not least.is_straight:
        return None
    for each in differences:
        apart = each.length >= APART * least.length
        if apart and abs(least.off - each.off) <= STRAIGHT * min(abs(least.off), abs(each.off)):
            return least
    return None


def lengths_along(loss: float, hidden: float, steepness: float) -> list[float]:
    """How far to move along a gradient, one after the other; none where no change would tell.

    `steepness` is by how much the loss grows a length.
    """
    if not steepness:
        return []
    wanted = [max(share * abs(loss), HIDDEN * hidden) for share in CHANGES]
    told = [change for change in dict.fromkeys(wanted) if change <= MOST_CHANGE * abs(loss)]
    lengths = [change / (2 * steepness) for change in told]
    return [length for length in lengths if length <= MOST_LENGTH]


def random_lengths(loss: float, hidden: float, steepness: float) -> list[float]:
    """The same of random directions; without any `steepness` the loss is not to change at all."""
    least, most = 0.0, MOST_LENGTH
    if steepness:
        least = RANDOM_HIDDEN * hidden / (2 * steepness)
        most = min(most, MOST_CHANGE * abs(loss) / (2 * steepness))
    first = max(RANDOM_LENGTH, least)
    wanted = [first, first / RANDOM_APART, first * RANDOM_APART]
    return [length for length in wanted if least <= length <= most]
