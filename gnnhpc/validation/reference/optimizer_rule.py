"""One step of Adam or SGD in plain float64.

Adam: Kingma & Ba 2015 (arXiv:1412.6980), algorithm 1, with weight decay added to the gradient; SGD
without momentum. Betas and epsilon are the paper's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from gnnhpc.experiment.experiment import OptimizerConfig

Array = npt.NDArray[np.float64]
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8


@dataclass(frozen=True)
class Moments:
    """Adam's state of one parameter: running means of the gradient and its square, steps taken."""

    mean: Array
    square: Array
    steps: float


@dataclass
class OptimizerRule:
    """Computes what a step should make of parameters, and keeps Adam's moments."""

    config: OptimizerConfig
    moments: dict[str, Moments] = field(default_factory=dict)
    """By parameter; a parameter without any has taken no step yet."""

    def step(
        self, parameters: Mapping[str, Array], gradients: Mapping[str, Array]
    ) -> dict[str, Array]:
        """The change of each parameter in one step; 0 for a parameter without a gradient."""
        return {
            name: self._change(name, value, gradients[name])
            if name in gradients
            else np.zeros_like(value)
            for name, value in parameters.items()
        }

    def _change(self, name: str, value: Array, gradient: Array) -> Array:
        gradient = gradient + self.config.weight_decay * value
        if self.config.name == "sgd":
            return -self.config.lr * gradient
        zeros = np.zeros_like(value)
        last = self.moments.get(name, Moments(zeros, zeros, 0.0))
        steps = last.steps + 1
        mean = BETA1 * last.mean + (1 - BETA1) * gradient
        square = BETA2 * last.square + (1 - BETA2) * gradient**2
        self.moments[name] = Moments(mean, square, steps)
        denominator = np.sqrt(square) / np.sqrt(1 - BETA2**steps) + EPSILON
        change: Array = -self.config.lr / (1 - BETA1**steps) * mean / denominator
        return change
