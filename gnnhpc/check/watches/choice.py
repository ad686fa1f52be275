"""Which steps are looked at closely: the same on every rank, by a rule and within a budget.

The first two training steps of an attempt and the last; then steps that a random rule draws from
each epoch, as long as looking has cost no more than a hundredth of the time. All ranks draw the
same steps, and each step's gathering tells them whether any of them has spent too much.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field

from gnnhpc.records.schema import Phase

FIRST = 2
AN_EPOCH = 3
"""Steps that are drawn from each epoch."""
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


def drawn(seed: int, phase: Phase, epoch: int, number: int, per_epoch: int) -> bool:
    """Whether step `number` of the `per_epoch` of an epoch is one of those drawn from it."""
    rule = random.Random(f"{seed}/{phase}/{epoch}")
    return number in rule.sample(range(per_epoch), min(AN_EPOCH, per_epoch))
