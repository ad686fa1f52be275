"""The reference's numbers, orders and optimizers are those of the suite and of torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gnnhpc.experiment.experiment import Experiment
from gnnhpc.validation.reference.training_step import OptimizerRule, clipped, gradient_rounding
from tests.tools.cells import GAT


@pytest.mark.parametrize(
    ("name", "kind", "extra"),
    [
        ("adam", torch.optim.Adam, {}),
        ("adamw", torch.optim.AdamW, {}),
        ("sgd", torch.optim.SGD, {}),
        ("sgd", torch.optim.SGD, {"momentum": 0.9}),
    ],
)
def test_optimizers(name: str, kind: Any, extra: dict[str, float]) -> None:
    settings = {"lr": 0.01, "weight_decay": 0.1, **extra}
    config = Experiment.model_validate(GAT | {"optimizer": {"name": name, **settings}}).optimizer
    rule, rng = OptimizerRule(config, 4), np.random.default_rng(0)
    value = {"a": rng.normal(size=(3, 4)), "b": rng.normal(size=5)}
    tensors = {n: torch.nn.Parameter(torch.from_numpy(v.copy())) for n, v in value.items()}
    optimizer = kind(tensors.values(), **settings)
    for step in range(4):
        gradients = {n: rng.normal(size=v.shape) for n, v in value.items()}
        for n, tensor in tensors.items():
            tensor.grad = torch.from_numpy(gradients[n].copy())
        optimizer.step()
        moves = rule.step(value, gradients, step)
        value = {n: v + moves[n] for n, v in value.items()}
        for n, tensor in tensors.items():
            np.testing.assert_allclose(value[n], tensor.detach().numpy(), rtol=1e-11)


def test_gradients_are_clipped_by_the_norm_of_all() -> None:
    gradients = {"a": np.array([3.0, 0.0]), "b": np.array([4.0])}
    assert clipped(gradients, 5.0).keys() == gradients.keys()
    half = clipped(gradients, 2.5)
    assert (half["a"].tolist(), half["b"].tolist()) == ([1.5, 0.0], [2.0])
    assert clipped(gradients, None) == gradients


@given(st.floats(3.0, 22.0), st.floats(-100.0, 100.0))
def test_rounding_of_a_gradient_is_within_its_bound(gap: float, level: float) -> None:
    """Of a row whose label leads by `gap`; both forms of the loss, as models and engines have."""
    scores = torch.tensor([[level + gap, level, level - 1.0]], dtype=torch.float64)
    lead = scores[0, 0] - scores[0, 1:]
    others = float((-lead).exp().sum())
    exact = others / (1.0 + others)
    bound = gradient_rounding(exact**2, 1, float(scores.abs().max()))
    for logarithms in (scores.log_softmax(1), scores - scores.logsumexp(1, keepdim=True)):
        found = 1.0 - float(logarithms[0, 0].exp())
        assert abs(found - exact) <= bound * exact
