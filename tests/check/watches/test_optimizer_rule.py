"""Rounding of Adam's corrections, which a GPU's fused step takes in single precision."""

from __future__ import annotations

import numpy as np
import pytest

from gnnhpc.check.watches.optimizer_rule import OptimizerState, fits, stepped
from gnnhpc.experiment.experiment import OptimizerConfig

ADAM = OptimizerConfig(name="adam", lr=1e-3)
ONE, BETA1, BETA2 = np.float32(1), np.float32(0.9), np.float32(0.999)


def in_single_precision(before: OptimizerState) -> OptimizerState:
    """One step whose every number is a float32, the betas and their powers too."""
    values, gradient, mean, square = (
        each.astype(np.float32)
        for each in (before.values, before.gradients, before.mean, before.square)
    )
    steps = before.steps + 1
    mean = BETA1 * mean + (ONE - BETA1) * gradient
    square = BETA2 * square + (ONE - BETA2) * gradient * gradient
    powers = (np.power(beta, steps.astype(np.float32)) for beta in (BETA1, BETA2))
    first, second = (ONE - power for power in powers)
    moved = np.float32(1e-3) / first * mean / (np.sqrt(square) / np.sqrt(second) + np.float32(1e-8))
    after = (values - moved, before.gradients, mean, square, steps)
    return OptimizerState(*(np.asarray(each, dtype=np.float64) for each in after))


@pytest.mark.parametrize("of_values", [0.0, 1.0])
def test_corrections_in_single_precision_are_allowed_for_where_they_are_taken(
    of_values: float,
) -> None:
    draw = np.random.default_rng(0)
    nothing = np.zeros(1_000)
    state = OptimizerState(of_values * draw.normal(size=1_000), nothing, nothing, nothing, nothing)
    for step in range(30):
        gradients = draw.normal(size=1_000) * 10.0 ** draw.integers(-6, 3, 1_000)
        state = state.with_gradients(gradients.astype(np.float32).astype(np.float64))
        found = in_single_precision(state)
        wanted = stepped(ADAM, state, "float32", "float32")
        assert fits(found.values, wanted.after.values, wanted.value_error).all()
        assert fits(found.mean, wanted.after.mean, wanted.mean_error).all()
        assert fits(found.square, wanted.after.square, wanted.square_error).all()
        if step == 0:
            on_cpu = stepped(ADAM, state, "float32")
            assert not fits(found.square, on_cpu.after.square, on_cpu.square_error).any()
        state = found
