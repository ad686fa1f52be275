"""What the optimizer's published rule makes of parameters and gradients, in float64."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from gnnhpc.spec.experiment import OptimizerConfig

Array = npt.NDArray[np.float64]
BETAS = (0.9, 0.999)
EPS = 1e-8
"""Adam's constants, torch's defaults and those of Kingma & Ba 2015."""


@dataclass
class OptimizerRule:
    """Adam (Kingma & Ba 2015, algorithm 1) or plain gradient descent, weight decay as L2."""

    config: OptimizerConfig
    steps: int = 0
    _moments: dict[str, tuple[Array, Array]] = field(default_factory=dict)

    def after(
        self, parameters: Mapping[str, Array], gradients: Mapping[str, Array]
    ) -> dict[str, Array]:
        """The parameters after one more step; those without a gradient stay."""
        self.steps += 1
        return {
            name: self._moved(name, value, gradients[name]) if name in gradients else value
            for name, value in parameters.items()
        }

    def _moved(self, name: str, value: Array, gradient: Array) -> Array:
        config = self.config
        gradient = gradient + config.weight_decay * value
        if config.name == "sgd":
            return value - config.lr * gradient
        mean, square = self._moments.get(name, (np.zeros_like(value), np.zeros_like(value)))
        mean = BETAS[0] * mean + (1 - BETAS[0]) * gradient
        square = BETAS[1] * square + (1 - BETAS[1]) * gradient**2
        self._moments[name] = mean, square
        corrected = math.sqrt(1 - BETAS[1] ** self.steps)
        rate = config.lr / (1 - BETAS[0] ** self.steps)
        moved: Array = value - rate * mean / (np.sqrt(square) / corrected + EPS)
        return moved
