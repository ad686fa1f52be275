"""What the optimizer's published rule makes of parameters, step after step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from gnnhpc.check.watches.optimizer_rule import OptimizerState, stepped
from gnnhpc.experiment.experiment import OptimizerConfig

Array = npt.NDArray[np.float64]


@dataclass
class OptimizerRule:
    """Keeps the optimizer's own state in float64; parameters and gradients come from the run."""

    config: OptimizerConfig
    dtype: str
    """The run's precision."""
    states: dict[str, OptimizerState] = field(default_factory=dict)
    """By parameter; without one it has taken no step yet."""

    def after(
        self, parameters: Mapping[str, Array], gradients: Mapping[str, Array]
    ) -> dict[str, Array]:
        """The parameters after one more step; those without a gradient stay."""
        return {
            name: self._moved(name, value, gradients[name]) if name in gradients else value
            for name, value in parameters.items()
        }

    def _moved(self, name: str, value: Array, gradient: Array) -> Array:
        zeros = np.zeros_like(value)
        last = self.states.get(name, OptimizerState(value, gradient, zeros, zeros, zeros))
        before = OptimizerState(value, gradient, last.mean, last.square, last.steps)
        self.states[name] = stepped(self.config, before, self.dtype).after
        return self.states[name].values
