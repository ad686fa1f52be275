"""A GPU's fused optimizer steps are within what its rule in float64 allows for."""

from __future__ import annotations

import pytest

from tests.check.watches.test_optimizer_watch import RULES, Trained, slightly_faster

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rule", RULES)
def test_true_steps_are_within_rounding(rule: str, dtype: str) -> None:
    trained = Trained(rule, dtype, "cuda")
    assert [trained.step(n) for n in range(60)] == [[]] * 60
    assert trained.step(60, slightly_faster)
