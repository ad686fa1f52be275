"""Optimizers, learning-rate schedules and clipping: what a user may write, and what it does."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.tools.cells import GAT, gat
from tests.validation.parity import checked

FULL = {
    "name": "sgd",
    "momentum": 0.9,
    "weight_decay": 0.01,
    "clip_norm": 0.05,
    "lr_schedule": {"name": "warmup", "steps": 3, "then": "cosine"},
}


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        ("constant", [1, 1, 1, 1, 1, 1]),
        ({"name": "step", "every": 2, "gamma": 0.5}, [1, 1, 0.5, 0.5, 0.25, 0.25]),
        ({"name": "warmup", "steps": 4}, [0.25, 0.5, 0.75, 1, 1, 1]),
        ("cosine", [(1 + math.cos(math.pi * step / 6)) / 2 for step in range(6)]),
        ({"name": "warmup", "steps": 2, "then": "cosine"}, [0.5, 1, 1, 0.854, 0.5, 0.146]),
    ],
)
def test_learning_rates_follow_from_the_step(schedule: Any, factors: list[float]) -> None:
    config = gat(optimizer={"lr": 0.1, "lr_schedule": schedule}).optimizer
    found = [config.lr_at(step, 6) for step in range(6)]
    assert found == pytest.approx([0.1 * factor for factor in factors], abs=1e-4)


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("raw", "optimizer"),
    [
        (
            {"layout": "pp2"},
            {"name": "adamw", "weight_decay": 0.1, "lr_schedule": "cosine", "clip_norm": 0.05},
        ),
        ({"layout": "dp2-pp2", "microbatches": 2, "engine": "pipelining"}, FULL),
        ({"layout": "pp2", "engine": "torchgpipe"}, FULL),
    ],
    ids=["adamw", "pipelining", "torchgpipe"],
)
def test_engines_agree_with_the_reference(raw: dict[str, Any], optimizer: dict[str, Any]) -> None:
    """From step 2 on, where the schedule has moved the learning rate."""
    check = checked(GAT | raw | {"optimizer": optimizer}, first=2)
    assert check.verdict == "ok", check.detail
