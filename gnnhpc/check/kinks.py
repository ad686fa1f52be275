"""Numbers so near to zero that rounding chooses the slope of a ReLU, leaky or not, or a maximum.

In single precision such a number may take the other slope than in double: a difference of the
gradient that is no mistake and that no tolerance fits. Each has two allowed gradients; the one
nearer to the run's is taken, and they are counted.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from gnnhpc.check.capture import Array
from gnnhpc.check.twin.scene import Kink
from gnnhpc.check.twin.training import TwinStep

NEAR = 32.0
"""Times the precision's epsilon and the sum of a score's magnitudes: nearer to zero is a kink."""
MOST = 16
"""Of a layer's that are looked at, those with the largest gradient first."""


class Explained(NamedTuple):
    """The twin's gradients with the slopes that fit the run's best, and how many were changed."""

    gradients: dict[str, Array]
    kinks: int


def explain_by_kinks(ours: dict[str, Array], twin: TwinStep, eps: float) -> Explained:
    """Try the other slope of each score at a kink, and keep it where it comes nearer to ours."""
    gradients, changed = dict(twin.gradients), 0
    for kink in reversed(twin.kinks):
        for place, gradient in _candidates(kink, eps):
            contribution = _of_other_slope(kink, place, gradient, twin)
            if _nearer(ours, gradients, contribution):
                changed += 1
                for name, value in contribution.items():
                    gradients[name] = gradients[name] + value
    return Explained(gradients, changed)


def _candidates(kink: Kink, eps: float) -> list[tuple[int, float]]:
    """Places in the flat scores, and the loss's gradient with respect to each score's output."""
    if kink.arriving is None:
        return []
    scores, arriving = kink.scores.detach().flatten(), kink.arriving.flatten()
    near = (scores.abs() <= NEAR * eps * kink.reach.flatten()) & (arriving != 0)
    # A score of exactly 0 is made of zeros, whatever the precision.
    near &= scores != 0
    places = near.nonzero().flatten()
    largest = arriving[places].abs().argsort(descending=True)[:MOST]
    return [(int(p), float(arriving[p])) for p in places[largest]]


def _of_other_slope(kink: Kink, place: int, arriving: float, twin: TwinStep) -> dict[str, Array]:
    """What the gradients gain where one score takes the other slope."""
    score = kink.scores.flatten()[place]
    steeper = 1.0 - kink.below
    other = steeper if float(score.detach()) <= 0 else -steeper
    # A scalar: gradients of anything else compare shapes by means of sympy, slow to import.
    found = torch.autograd.grad(
        score * (other * arriving),
        list(twin.parameters.values()),
        retain_graph=True,
        allow_unused=True,
    )
    return {
        name: value.numpy()
        for name, value in zip(twin.parameters, found, strict=True)
        if value is not None
    }


def _nearer(ours: dict[str, Array], now: dict[str, Array], gain: dict[str, Array]) -> bool:
    """Whether the gain takes more off the distance than it adds, over all tensors it touches."""
    before = sum(float(np.sum((ours[n] - now[n]) ** 2)) for n in gain if n in ours)
    after = sum(float(np.sum((ours[n] - now[n] - gain[n]) ** 2)) for n in gain if n in ours)
    return after < before
