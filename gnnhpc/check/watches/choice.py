"""Which steps are looked at closely: the same on every rank, by a rule and within a budget.

The first two training steps of an attempt and the last; then steps that a random rule draws from
each epoch, as long as looking has cost no more than a hundredth of the time. All ranks draw the
same steps, and each step's gathering tells them whether any of them has spent too much.

Hooks make a step of few milliseconds some per cent longer. So most steps are not looked at, however
short an epoch is, and the others' times need not count (`analysis.statistics.noise`).
"""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass, field

from gnnhpc.records.schema import Phase

FIRST = 2
AN_EPOCH = 3
"""Steps that are drawn from each epoch, or from as many epochs as have LEAST_STEPS."""
LEAST_STEPS = 12
SHARE = 0.01
"""Of the time of a run, that looking may take."""
ALWAYS_S = 0.25
"""May be spent however short the run is: a twentieth of what starting a rank takes."""


@dataclass
class LookBudget:
    """What looking has cost on this rank, and whether all ranks can afford more."""

    spent_s: float = 0.0
    """Without the first looks, which read the data."""
    affordable: bool = True
    began_s: float = field(default_factory=time.perf_counter)

    @property
    def over(self) -> bool:
        """Whether this rank has spent too much; told to all, so that they choose alike."""
        elapsed = time.perf_counter() - self.began_s
        return self.spent_s > max(ALWAYS_S, SHARE * elapsed)


def drawn(seed: int, phase: Phase, step: int, per_epoch: int) -> bool:
    """Whether a step is one of those drawn from its epoch, or epochs, of `per_epoch` steps each."""
    together = per_epoch * math.ceil(LEAST_STEPS / per_epoch)
    part, number = divmod(step, together)
    rule = random.Random(f"{seed}/{phase}/{part}")
    return number in rule.sample(range(together), AN_EPOCH)
