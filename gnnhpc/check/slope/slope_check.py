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
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gnnhpc.check.slope.differences import (
    Difference,
    contradiction,
    lengths_along,
    random_lengths,
)
from gnnhpc.check.slope.directions import Direction, Point, along_gradient, random_signs
from gnnhpc.check.slope.passes import Pass, Passes
from gnnhpc.models.own_model import OwnModel
from gnnhpc.ranks.mesh import Mesh
from gnnhpc.records.schema import Check
from gnnhpc.spec.experiment import Experiment
from gnnhpc.train.setup import TrainingParts

NAME = "slope"
ROUNDINGS = 1.0
"""How many units in the last place of its largest score a row's loss may be off."""
PASSES = 5
"""Where the first difference of each direction is right."""
MOST_S, MOST_SHARE = 30.0, 0.1
"""What it may take: the larger of these seconds and this share of all training steps."""


@dataclass(frozen=True)
class Slopes:
    """Differences of one loss, as many as are needed for one that is right; none where rounding
    hides all."""

    along: Sequence[Difference] = ()
    """The gradient."""
    random: Sequence[Difference] = ()
    """Signs."""


def slope_check(
    experiment: Experiment, parts: TrainingParts, mesh: Mesh, step_s: Sequence[float]
) -> Check:
    """The same check on every rank; a collective, which leaves parameters and buffers as they were.

    `step_s` are how long this rank's training steps took.
    """
    mean_s = sum(step_s) / len(step_s) if step_s else 0.0
    taken = mesh.gather(torch.tensor([mean_s, sum(step_s)], dtype=torch.float64)).max(0).values
    mean_s, total_s = taken.tolist()
    if PASSES * mean_s > max(MOST_S, MOST_SHARE * total_s):
        detail = f"{PASSES} steps of {mean_s:.2g} s would be too much of a run of {total_s:.2g} s"
        return Check(NAME, "unknown", detail, {})
    began = time.perf_counter()
    parts.stage.train()
    step = experiment.train_steps
    with parts.batches.open("train", step, step + 1) as batches:
        slopes = _slopes(experiment, Passes(parts, mesh, next(iter(batches))))
    own = isinstance(experiment.model, OwnModel)
    return verdict(slopes, time.perf_counter() - began, own=own)


def verdict(slopes: Slopes, seconds: float, *, own: bool = False) -> Check:
    """Of a model of a user's `own` gradients may be meant to be no slopes, as of a straight-through
    estimator, or it draws numbers of its own: that is for its user to say.
    """
    wrong_along, wrong_random = contradiction(slopes.along), contradiction(slopes.random)
    along = wrong_along or min(slopes.along, key=lambda each: abs(each.error), default=None)
    random = wrong_random or min(slopes.random, key=lambda each: abs(each.off), default=None)
    values = {
        "ratio": None if along is None else 1 + along.error,
        "random": None if random is None or not random.size else random.error,
        "tried": len(slopes.along) + len(slopes.random),
        "seconds": round(seconds, 3),
    }
    if wrong_along is not None:
        return _wrong(f"along its gradient by {_ratio(wrong_along)}", values, own=own)
    if wrong_random is not None:
        return _wrong(f"in a random direction {_otherwise(wrong_random)}", values, own=own)
    if along is None or random is None:
        # Nor along a gradient that is zero.
        detail = "rounding hides the slope of so small a loss, or there is none"
        return Check(NAME, "unknown", detail, values)
    if not along.is_right or not random.is_right:
        found = _otherwise(random) if along.is_right else f"by {_ratio(along)}"
        detail = f"the loss changes {found}, and is not straight enough to tell why"
        return Check(NAME, "unknown", detail, values)
    detail = (
        f"the loss of one step more changes as its gradient says: along it by {_ratio(along)}, in "
        f"a random direction {_otherwise(random)}"
    )
    return Check(NAME, "ok", detail, values)


def _wrong(how: str, values: dict[str, float | None], *, own: bool) -> Check:
    detail = f"the loss of one step more changes {how}"
    if own:
        return Check(NAME, "suspect", f"{detail}, unless its model means it so", values)
    return Check(NAME, "invalid", detail, values)


def _ratio(each: Difference) -> str:
    return f"{1 + each.error:.4f} of what the gradient says"


def _otherwise(each: Difference) -> str:
    if not each.size:
        return f"by {abs(each.off):.2g} a length, and has no gradient"
    return f"otherwise by {abs(each.error):.4f} of what a gradient so long makes it change"


def _slopes(experiment: Experiment, passes: Passes) -> Slopes:
    first = passes.take()
    loss, hidden = first.loss, _hidden_by_rounding(experiment, first)
    point = Point(passes.parameters)
    along, steepness = along_gradient(point)
    # Replicas move as one, and stages apart.
    random, square = random_signs(point, experiment.seed * 1000 + passes.mesh.stage)
    steepness = passes.sum_of_stages(steepness)
    of_random = math.sqrt(passes.sum_of_stages(square))
    if not all(map(math.isfinite, (loss, steepness, of_random))):
        return Slopes()
    lengths = lengths_along(loss, hidden, steepness)
    random_ones = random_lengths(loss, hidden, of_random)
    return Slopes(
        _differences(passes, along, lengths, steepness, hidden),
        _differences(passes, random, random_ones, of_random, hidden),
    )


def _hidden_by_rounding(experiment: Experiment, of: Pass) -> float:
    """Rows are rounded each by itself."""
    eps = torch.finfo(getattr(torch, experiment.dtype)).eps
    return ROUNDINGS * eps * (abs(of.loss) + of.score) / math.sqrt(of.labelled)


def _differences(
    passes: Passes, direction: Direction, lengths: Sequence[float], steepness: float, hidden: float
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
            size = 2 * length * steepness
            found.append(Difference(length, higher - lower, expected, size, hidden))
            if found[-1].is_right:
                break
    return found
