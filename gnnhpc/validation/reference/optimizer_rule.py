"""What a training step should make of parameters, in plain float64, by the published rules.

Adam: Kingma & Ba 2015 (arXiv:1412.6980), algorithm 1, with weight decay added to the gradient;
AdamW: Loshchilov & Hutter 2019 (arXiv:1711.05101), algorithm 2, whose weight decay is multiplied by
the learning rate, as torch's is; SGD with momentum: Sutskever et al. 2013, in torch's form. An
optimizer that is added brings its own rule (`OptimizerConfig.reference_move`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from gnnhpc.optimizers.optimizer import OptimizerConfig

Array = npt.NDArray[np.float64]
State = dict[str, Array]
"""What an optimizer keeps of one parameter between steps, by torch's names."""
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8


@dataclass
class OptimizerRule:
    """The moves of one replica's parameters, and what is kept between steps."""

    config: OptimizerConfig
    total: int
    """Training steps of the run, which learning-rate schedules need."""
    states: dict[str, State] = field(default_factory=dict)
    """By parameter; a parameter without any has taken no step yet."""

    def step(
        self, parameters: Mapping[str, Array], gradients: Mapping[str, Array], step: int
    ) -> dict[str, Array]:
        """The change of each parameter in training step `step`; 0 for one without a gradient."""
        lr = self.config.lr_at(step, self.total)
        return {
            name: self._move(name, value, gradients[name], lr)
            if name in gradients
            else np.zeros_like(value)
            for name, value in parameters.items()
        }

    def _move(self, name: str, value: Array, gradient: Array, lr: float) -> Array:
        state, decay = self.states.setdefault(name, {}), self.config.weight_decay
        match self.config.name:
            case "adam":
                return -lr * _adam(gradient + decay * value, state)
            case "adamw":
                return -lr * decay * value - lr * _adam(gradient, state)
            case "sgd":
                momentum: float = getattr(self.config, "momentum", 0.0)
                return -lr * _momentum(gradient + decay * value, state, momentum)
        return self.config.reference_move(value, gradient, state, lr)


def _adam(gradient: Array, state: State) -> Array:
    zeros = np.zeros_like(gradient)
    steps = state.get("step", np.zeros(())) + 1
    mean = BETA1 * state.get("exp_avg", zeros) + (1 - BETA1) * gradient
    square = BETA2 * state.get("exp_avg_sq", zeros) + (1 - BETA2) * gradient**2
    state |= {"step": steps, "exp_avg": mean, "exp_avg_sq": square}
    direction: Array = mean / (1 - BETA1**steps) / (np.sqrt(square / (1 - BETA2**steps)) + EPSILON)
    return direction


def _momentum(gradient: Array, state: State, momentum: float) -> Array:
    if not momentum:
        return gradient
    velocity: Array = momentum * state.get("momentum_buffer", np.zeros_like(gradient)) + gradient
    state["momentum_buffer"] = velocity
    return velocity


def clipped(gradients: Mapping[str, Array], clip_norm: float | None) -> dict[str, Array]:
    """The gradients, scaled so that the norm of all together is no larger than `clip_norm`."""
    norm = math.sqrt(sum(float(np.sum(gradient**2)) for gradient in gradients.values()))
    if clip_norm is None or norm <= clip_norm:
        return dict(gradients)
    return {name: gradient * (clip_norm / norm) for name, gradient in gradients.items()}
