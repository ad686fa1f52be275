"""What one step of Adam or SGD makes of parameters, in plain float64, and how far rounding may go.

Adam: Kingma and Ba 2015 (arXiv:1412.6980), algorithm 1, with weight decay added to the gradient;
SGD without momentum likewise. Betas and epsilon are those of the paper.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnhpc.experiment.experiment import OptimizerConfig

Values = npt.NDArray[np.float64]

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8
ROUNDINGS = 8
"""Operations, at most, that each quantity below is rounded in on its way to the next."""


@dataclass(frozen=True)
class OptimizerState:
    """Elements of parameters, each array [elements]: values, their gradients, Adam's state."""

    values: Values
    gradients: Values
    mean: Values
    """First moment; zeros of SGD."""
    square: Values
    """Second moment; zeros of SGD."""
    steps: Values
    """Steps taken; zeros of SGD."""

    def with_gradients(self, gradients: Values) -> OptimizerState:
        return replace(self, gradients=gradients)


@dataclass(frozen=True)
class Stepped:
    """The state that a step leads to, and what rounding may add to each value and moment."""

    after: OptimizerState
    moved: Values
    """By how much each value falls."""
    value_error: Values
    mean_error: Values
    square_error: Values


def stepped(
    config: OptimizerConfig, before: OptimizerState, dtype: str, corrections_in: str = "float64"
) -> Stepped:
    """One step from `before`; the errors are bounds for arithmetic in `dtype`, to first order.

    Differences from 1 of the betas and of their powers are taken in `corrections_in`, which loses
    much of them in single precision: 1 - 0.999 is off by 1.3e-5 of itself there.
    A sum of products is off by its number of roundings times the unit roundoff times the sum of
    the products' sizes (Higham 2002, section 3.1); what a division and a root make of such an
    error follows from their derivatives. Below the smallest normal number nothing is kept.
    """
    unit, least_normal = ROUNDINGS * np.finfo(dtype).eps, np.finfo(dtype).tiny
    values, gradient = before.values, before.gradients + config.weight_decay * before.values
    size = np.abs(before.gradients) + config.weight_decay * np.abs(values)
    nothing = np.zeros_like(values)
    if config.name == "sgd":
        moved = config.lr * gradient
        error = unit * config.lr * size
        after = replace(before, values=values - moved)
        rounding = unit * (np.abs(values) + np.abs(moved)) + least_normal
        return Stepped(after, moved, error + rounding, nothing, nothing)
    steps = before.steps + 1
    mean = BETA1 * before.mean + (1 - BETA1) * gradient
    square = BETA2 * before.square + (1 - BETA2) * gradient**2
    difference = np.finfo(corrections_in).eps
    mean_error = unit * (np.abs(before.mean) + size) + least_normal + difference * size
    square_error = unit * (BETA2 * before.square + (1 - BETA2) * size**2) + least_normal
    square_error = square_error + difference * size**2
    root, corrected = np.sqrt(square), np.sqrt(1 - BETA2**steps)
    # A root changes by the error over twice itself, and by no more than the error's own root.
    with np.errstate(divide="ignore", invalid="ignore"):
        by_slope = np.where(root > 0, square_error / (2 * root), np.inf)
    root_error = np.minimum(by_slope, np.sqrt(square_error)) / corrected
    denominator = root / corrected + EPSILON
    rate = config.lr / (1 - BETA1**steps)
    moved = rate * mean / denominator
    least = np.maximum(denominator - root_error, EPSILON)
    error = rate * mean_error / least + np.abs(rate * mean) / denominator * root_error / least
    # Both corrections are small differences of numbers near one.
    corrections = 1 / (1 - BETA1**steps) + 1 / (1 - BETA2**steps)
    error = error + ROUNDINGS * difference * corrections * np.abs(moved)
    rounding = unit * (np.abs(values) + np.abs(moved)) + least_normal
    after = OptimizerState(values - moved, before.gradients, mean, square, steps)
    return Stepped(after, moved, error + rounding, mean_error, square_error)


def fits(found: Values, wanted: Values, error: Values) -> Any:
    """Whether each value is the one wanted but for rounding; bool [elements], false for NaN."""
    return np.abs(found - wanted) <= error
