"""Learning-rate schedules: functions of the training step, so that a resumed run needs no state."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Annotated, Literal

from pydantic import Field

from gnnhpc.core.settings import Steps, Strict


class LrSchedule(Strict):
    """What the learning rate is multiplied by in a step."""

    name: str

    @abstractmethod
    def factor(self, step: int, total: int) -> float:
        """The factor of training step `step`, the first being 0, of `total`."""


class Constant(LrSchedule):
    """The same learning rate in every step."""

    name: Literal["constant"] = "constant"

    def factor(self, step: int, total: int) -> float:
        return 1.0


class StepDecay(LrSchedule):
    """Multiplies the learning rate by `gamma` every `every` steps."""

    name: Literal["step"] = "step"
    every: Annotated[Steps, Field(ge=1)] = 100
    """Training steps between two changes."""
    gamma: Annotated[float, Field(gt=0, le=1)] = 0.1
    """What the learning rate is multiplied by at each change."""

    def factor(self, step: int, total: int) -> float:
        return self.gamma ** (step // self.every)


class Cosine(LrSchedule):
    """Lets the learning rate fall to `final` of itself at the last step, along half a cosine."""

    name: Literal["cosine"] = "cosine"
    final: Annotated[float, Field(ge=0, le=1)] = 0.0
    """The share of the learning rate that is left at the end."""

    def factor(self, step: int, total: int) -> float:
        done = min(step / total, 1.0)
        return self.final + (1.0 - self.final) * (1.0 + math.cos(math.pi * done)) / 2.0


class Warmup(LrSchedule):
    """Lets the learning rate rise in equal steps, and then keeps it or lets it fall."""

    name: Literal["warmup"] = "warmup"
    steps: Annotated[Steps, Field(ge=1)] = 100
    """Training steps until the full learning rate; the first step has one `steps`-th of it."""
    then: Literal["constant", "cosine"] = "constant"
    """What follows: the full learning rate, or half a cosine down to 0 at the last step."""

    def factor(self, step: int, total: int) -> float:
        if step < self.steps:
            return (step + 1) / self.steps
        if self.then == "constant":
            return 1.0
        return Cosine().factor(step - self.steps, max(1, total - self.steps))


LR_SCHEDULES: dict[str, type[LrSchedule]] = {
    "constant": Constant,
    "step": StepDecay,
    "cosine": Cosine,
    "warmup": Warmup,
}
"""Name in a spec -> the class behind it."""
