"""Whether the gradient of a step of full size is the slope of its loss.

The self-checks hold gradients against a twin's, of few rows: what goes wrong in larger tensors
alone shows in none. Here the run's own stages take one step more, at what they hold after the last,
and its loss again with the parameters a little further and back: a central difference, of which the
gradient says how large it is. It is taken along the gradient, where a wrong length shows, and in a
direction of random signs, which a gradient that lacks something cannot hide it from.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from gnnhpc.check.slope.differences import (
    Difference,
    contradiction,
    lengths_along,
    random_lengths,
)
from gnnhpc.check.slope.directions import (
    Direction,
    Point,
    along_gradient,
    elsewhere,
    random_signs,
)
from gnnhpc.check.slope.passes import Pass, Passes
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.models.custom_model import CustomModel
from gnnhpc.records.schema import Check

NAME = "slope"
ROUNDINGS = 0.5
"""How many units in the last place of its largest score a row's loss may be off."""
RANDOM_DIRECTIONS = 2
PLACES = 3
"""Beside the run's own, which are tried where the loss is not straight there, or contradicts."""
PASSES = 3 + 2 * RANDOM_DIRECTIONS
"""Where the first difference of each direction is right."""
MOST_S, MOST_SHARE = 30.0, 0.1
"""What it may take: the larger of these seconds and this share of all training steps."""


@dataclass(frozen=True)
class Slopes:
    """Differences of one loss, as many as are needed for one that is right; none where rounding
    hides all."""

    along: Sequence[Difference] = ()
    """The gradient."""
    random: Sequence[Sequence[Difference]] = ()
    """Signs, of each of some directions."""
    beside: bool = False
    """Whether the parameters were moved a little first."""
    doubtful: bool = False
    """Whether what contradicts the gradient does so at no other place."""
    far_off: bool = False
    """Whether the loss is far from what the gradient says at all places, though not straight."""

    @property
    def directions(self) -> list[Sequence[Difference]]:
        return [self.along, *self.random]

    @property
    def wrong(self) -> str | None:
        """What the loss does that contradicts the gradient, in words."""
        found = contradiction(self.along)
        if found is not None:
            return f"along its gradient by {_ratio(found)}"
        for each in self.random:
            found = contradiction(each)
            if found is not None:
                return f"in a random direction {_otherwise(found)}"
        return None

    @property
    def are_hidden(self) -> bool:
        """Whether rounding hides the slope in some direction, or it was left out."""
        return not self.random or not all(self.directions)

    @property
    def are_far_off(self) -> bool:
        """In some direction, whatever the length."""
        return any(each and all(one.is_far_off for one in each) for each in self.directions)

    @property
    def are_right(self) -> bool:
        """In each direction."""
        best = [_best(each) for each in self.directions]
        return not self.are_hidden and all(each is not None and each.is_right for each in best)


def slope_check(
    experiment: Experiment,
    passes: Passes,
    first: Pass,
    step_s: Sequence[float],
    within_s: float | None = None,
) -> Check:
    """The same check on every rank; a collective, which leaves parameters and buffers as they were.

    `first` is the last pass that was taken, whose gradients are there; `step_s` are how long this
    rank's training steps took; `within_s` is what there is for it, where that is little.
    """
    mean_s = sum(step_s) / len(step_s) if step_s else 0.0
    mine = torch.tensor([mean_s, sum(step_s)], dtype=torch.float64)
    mean_s, total_s = passes.mesh.gather(mine).max(0).values.tolist()
    affordable_s = within_s or max(MOST_S, MOST_SHARE * total_s)
    if PASSES * mean_s > affordable_s:
        detail = f"{PASSES} steps of {mean_s:.2g} s would be too much of a run of {total_s:.2g} s"
        return Check(NAME, "unknown", detail, {})
    began = time.perf_counter()
    most = affordable_s / mean_s if mean_s else math.inf
    slopes = confirmed(_at_places(experiment, passes, first, most))
    own = isinstance(experiment.model, CustomModel)
    return verdict(slopes, time.perf_counter() - began, own=own)


def verdict(slopes: Slopes, seconds: float, *, own: bool = False) -> Check:
    """Of a model of a user's `own` gradients may be meant to be no slopes, as of a straight-through
    estimator, or it draws numbers of its own: that is for its user to say.
    """
    along = _best(slopes.along)
    random = [_best(each) for each in slopes.random]
    told = [each for each in random if each is not None]
    worst = max(told, key=lambda each: abs(each.off), default=None)
    values = {
        "ratio": None if along is None else 1 + along.error,
        "random": None if worst is None or not worst.size else worst.error,
        "tried": sum(map(len, slopes.directions)),
        "seconds": round(seconds, 3),
    }
    wrong = slopes.wrong
    if wrong is not None and not slopes.doubtful:
        detail = f"the loss of one step more changes {wrong}"
        if own:
            return Check(NAME, "suspect", f"{detail}, unless its model means it so", values)
        return Check(NAME, "invalid", detail, values)
    if slopes.are_hidden or along is None or worst is None:
        detail = "rounding hides the slope of so small a loss, or there is none"
        return Check(NAME, "unknown", detail, values)
    if wrong or not slopes.are_right:
        found = _otherwise(worst) if along.is_right else f"by {_ratio(along)}"
        detail = f"the loss changes {wrong or found}, and is not straight enough to tell why"
        return Check(NAME, "suspect" if slopes.far_off else "unknown", detail, values)
    moved = ", at parameters a little beside," if slopes.beside else ""
    detail = (
        f"the loss of one step more changes{moved} as its gradient says: along it by "
        f"{_ratio(along)}, in random directions {_otherwise(worst)}"
    )
    return Check(NAME, "ok", detail, values)


def _best(differences: Sequence[Difference]) -> Difference | None:
    """The one that is least off."""
    return min(differences, key=lambda each: abs(each.off), default=None)


def _ratio(each: Difference) -> str:
    return f"{1 + each.error:.4f} of what the gradient says"


def _otherwise(each: Difference) -> str:
    if not each.size:
        return f"by {abs(each.off):.2g} a length, and has no gradient"
    return f"otherwise by {abs(each.error):.4f} of what a gradient so long makes it change"


def confirmed(places: Iterable[Slopes]) -> Slopes:
    """Of the run's own place, and of as many beside as are needed.

    Where units are at their kinks the loss has no one slope, and a little beside they are not: a
    wrong gradient is wrong at two places, and a right one at the first that tells.
    """
    found = iter(places)
    here = next(found)
    if here.wrong is None and (here.are_right or here.are_hidden):
        return here
    wrong = [here] if here.wrong is not None else []
    tried = [here]
    for beside in found:
        tried.append(beside)
        if beside.wrong is not None:
            wrong.append(beside)
        if len(wrong) > 1:
            return wrong[0]
        if beside.are_right and not wrong:
            return replace(beside, beside=True)
    far_off = len(tried) > 1 and all(each.are_far_off for each in tried)
    return replace(here, doubtful=True, far_off=far_off)


def _at_places(
    experiment: Experiment, passes: Passes, first: Pass, most: float
) -> Iterator[Slopes]:
    """Beside, so long as no more than `most` passes were taken; all where the run's own place
    contradicts the gradient."""
    here = _slopes(experiment, passes, first, 0)
    yield here
    point = Point(passes.parameters)
    for place in range(1, 1 + PLACES):
        if here.wrong is None and passes.taken > most:
            return
        with elsewhere(point, _seed(experiment, passes, place, RANDOM_DIRECTIONS)):
            beside = _slopes(experiment, passes, passes.take(), place)
        yield beside


def _seed(experiment: Experiment, passes: Passes, place: int, number: int) -> int:
    """Replicas move as one, and stages apart; of 64 bits, as torch's generators take it."""
    return (((experiment.seed * 1000 + passes.mesh.stage) * 10 + place) * 10 + number) % 2**64


def _slopes(experiment: Experiment, passes: Passes, first: Pass, place: int) -> Slopes:
    loss, hidden = first.loss, _hidden_by_rounding(experiment, first)
    point = Point(passes.parameters)
    along, steepness = along_gradient(point)
    random = [
        random_signs(point, _seed(experiment, passes, place, n)) for n in range(RANDOM_DIRECTIONS)
    ]
    steepness = passes.sum_of_stages(steepness)
    of_random = [math.sqrt(passes.sum_of_stages(square)) for _, square in random]
    if not all(map(math.isfinite, (loss, steepness, *of_random))):
        return Slopes()
    lengths = lengths_along(loss, hidden, steepness)
    return Slopes(
        _differences(passes, along, lengths, steepness, loss, hidden),
        [
            _differences(passes, each, random_lengths(loss, hidden, much), much, loss, hidden)
            for (each, _), much in zip(random, of_random, strict=True)
        ],
    )


def _hidden_by_rounding(experiment: Experiment, of: Pass) -> float:
    """Rows are rounded each by itself."""
    eps = torch.finfo(getattr(torch, experiment.dtype)).eps
    return ROUNDINGS * eps * (abs(of.loss) + of.score) / math.sqrt(of.labelled)


def _differences(
    passes: Passes,
    direction: Direction,
    lengths: Sequence[float],
    steepness: float,
    loss: float,
    hidden: float,
) -> list[Difference]:
    """One after the other until one is right; where nothing moved in rounding there is none."""
    found: list[Difference] = []
    for length in lengths:
        try:
            ahead, moved = direction.move(length)
            higher = passes.take().loss
            back, _ = direction.move(-length)
            lower = passes.take().loss
        finally:
            direction.point.put_back()
        if passes.sum_of_stages(moved):
            expected = passes.sum_of_stages(ahead - back)
            off_ahead = higher - loss - passes.sum_of_stages(ahead)
            size = 2 * length * steepness
            found.append(Difference(length, higher - lower, expected, size, hidden, off_ahead))
            if found[-1].is_right:
                break
    return found
