"""What the twin in a run's precision allows that run: one draw of rounding, then a few more.

The twin's own sums are one draw. Where they do not explain a difference, and there alone, more are
taken (see `gnnhpc.check.twin.forward_rounding`), and the largest is the measure. Of a user's own
model there are the latter alone (`gnnhpc.check.own_draws`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar

from gnnhpc.check.twin.plain_model import PlainModel

ROUNDING_FACTOR = 8.0
"""Times what single precision makes of the twin's own numbers: another order of the same sums,
and another exponential, have been seen to make four times as much of healthy cells. Where a softmax
is saturated, or a layer's gradient is what large ones leave of each other, that is more than the
tolerance."""
DRAWS = 4

T = TypeVar("T")


@dataclass
class RoundingDraws(Generic[T]):
    """Draws of one computation: the first, and others only when asked for."""

    first: T
    draw: Callable[[int], T]

    @classmethod
    def of(cls, single: PlainModel, compute: Callable[[PlainModel], T]) -> RoundingDraws[T]:
        """Of what `compute` makes of the twin in single precision, each as it is now."""
        began = single.copied()
        return cls(compute(single), lambda draw: compute(began.rounded(draw)))

    @cached_property
    def more(self) -> list[T]:
        return [self.draw(draw) for draw in range(DRAWS)]

    def allowed(self, relative: float, tolerance: float, rounding: Callable[[T], float]) -> float:
        """How large `relative` may be, if `rounding` says how far off a draw is."""
        allowed = max(tolerance, ROUNDING_FACTOR * rounding(self.first))
        if relative <= allowed:
            return allowed
        return max([allowed, *(ROUNDING_FACTOR * finite(rounding(each)) for each in self.more)])


def finite(relative: float) -> float:
    """What is no number allows nothing."""
    return relative if math.isfinite(relative) else 0.0
