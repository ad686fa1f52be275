"""A sibling: what one attempt at a cell learnt; and where one leaves another, in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from analysis.across.likeness import Facts
from analysis.across.rounding import Values

Quantity = Literal["training loss", "gradient norm", "test loss"]
Place = tuple[int, int]
"""Training steps before an evaluated mini-batch, and its number in its evaluation."""


@dataclass(frozen=True)
class Sibling:
    """What one attempt learnt since step 0, with the attempts that it resumed."""

    cell: str
    attempt: int
    configuration: str
    """The cell's settings but for the repeat; cells of one configuration have one vote together."""
    plainness: tuple[int, ...]
    """Larger is plainer, in each respect: one process, reference layers, a graph in one piece."""
    losses: Values
    """[training steps], nan where a step has none."""
    norms: Values
    """[training steps]: of the whole gradient, over all stages."""
    tests: Mapping[Place, float] = field(default_factory=dict)
    """Test losses."""
    ways: tuple[str, ...] = ()
    """How it is computed, coarsely first: those that share a way stay together for longer."""
    dtype: str = "float32"
    facts: Facts = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.cell}, attempt {self.attempt}"

    def is_as_plain_as(self, other: Sibling) -> bool:
        return all(a >= b for a, b in zip(self.plainness, other.plainness, strict=True))


@dataclass(frozen=True)
class Departure:
    """The first place at which two siblings are further apart than rounding explains."""

    quantity: Quantity
    place: Place
    """Of training the step and 0."""
    mine: float
    theirs: float
    apart: float
    """Relative; so is `before`, the most that they were apart until then."""
    before: float

    @property
    def words(self) -> str:
        step, number = self.place
        where = f"step {step}"
        if self.quantity == "test loss":
            where = f"mini-batch {number} after {step} steps"
        return (
            f"{self.quantity} of {where} is {self.mine:.7g}, there {self.theirs:.7g}: "
            f"{self.apart:.1e} apart, {self.before:.1e} at most before"
        )

    @property
    def likely_cause(self) -> str:
        """What is computed at that place and nowhere before it."""
        step = self.place[0]
        if self.quantity == "test loss":
            return "training agrees: running statistics, evaluation mode or test data"
        if self.quantity == "gradient norm":
            return "losses agree: backward pass, or how gradients are scaled"
        if step == 0:
            return "nothing was learnt yet: initial values, data or forward pass"
        if step == 1:
            return "loss and gradient of step 0 agree: optimizer step, or the second mini-batch"
        return "earlier steps agree: the order of data, an optimizer step, or kept state"
