"""Optimizers, learning-rate schedules and clipping: what a user may write, and what it does."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from gnnhpc.experiment.experiment import Experiment
from gnnhpc.optimizers import registry
from gnnhpc.optimizers.lr_schedules import LrSchedule
from gnnhpc.optimizers.optimizer import OptimizerConfig
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


# To add an optimizer or a schedule: one class as here, in a file of `gnnhpc/optimizers/`, ...
class SignSgd(OptimizerConfig):
    """Moves each parameter by the sign of its gradient."""

    name: Literal["signsgd"] = "signsgd"

    def build(self, parameters: Sequence[torch.Tensor], *, fused: bool) -> torch.optim.Optimizer:
        return _SignSgd(parameters, {"lr": self.lr})

    def reference_move(
        self, value: Any, gradient: Any, state: dict[str, Any], lr: float
    ) -> np.ndarray[Any, Any]:
        move: np.ndarray[Any, Any] = -lr * np.sign(gradient)
        return move


class _SignSgd(torch.optim.Optimizer):
    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(group["lr"] * p.grad.sign())


class Halves(LrSchedule):
    """Half the learning rate in every second step."""

    name: Literal["halves"] = "halves"

    def factor(self, step: int, total: int) -> float:
        return 0.5 if step % 2 else 1.0


def add() -> None:
    """... and one row of the table."""
    registry.OPTIMIZERS["signsgd"] = f"{__name__}:SignSgd"
    registry.LR_SCHEDULES["halves"] = f"{__name__}:Halves"


def test_an_optimizer_and_a_schedule_are_added_by_one_class_and_one_row_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raw = GAT | {"layout": "pp2", "optimizer": {"name": "signsgd", "lr_schedule": "halves"}}
    with pytest.raises(ValidationError):
        Experiment.model_validate(raw)
    monkeypatch.setattr(registry, "OPTIMIZERS", dict(registry.OPTIMIZERS))
    monkeypatch.setattr(registry, "LR_SCHEDULES", dict(registry.LR_SCHEDULES))
    check = checked(raw, functools.partial(add))
    assert check.verdict == "ok", check.detail
