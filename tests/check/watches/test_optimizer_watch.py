"""The optimizer's rule in float64 holds torch's steps within rounding, and names what is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from gnnhpc.check.watches.findings import Findings
from gnnhpc.check.watches.optimizer_watch import OptimizerWatch
from gnnhpc.engines.stage import Stage
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.train.optimizer import build_optimizer
from tests.tools.cells import vig

RULES: dict[str, dict[str, Any]] = {
    "adam": {"name": "adam", "lr": 1e-3},
    "adam with weight decay": {"name": "adam", "lr": 1e-2, "weight_decay": 0.1},
    "sgd": {"name": "sgd", "lr": 0.1},
    "sgd with weight decay": {"name": "sgd", "lr": 0.1, "weight_decay": 0.1},
}
Change = Callable[[torch.optim.Optimizer], None]


class Trained:
    """Parameters of many sizes and scales that are trained on random gradients."""

    def __init__(self, rule: str, dtype: str = "float32", device: str = "cpu") -> None:
        torch.manual_seed(3)
        self.experiment: Experiment = vig(optimizer=RULES[rule], dtype=dtype)
        layer = nn.Module()
        for n, shape in enumerate([(7,), (300, 200), (3, 1, 5), (1,)]):
            values = torch.randn(shape, dtype=getattr(torch, dtype)) * 10.0 ** (2 - n)
            layer.register_parameter(f"p{n}", nn.Parameter(values))
        self.stage = Stage([], [], None)  # type: ignore[arg-type]
        self.stage.add_module("layer", layer.to(device))
        self.optimizer = build_optimizer(self.experiment, self.stage)
        assert self.optimizer is not None
        self.findings = Findings()
        self.watch = OptimizerWatch(self.experiment, self.stage, self.optimizer, self.findings)

    def step(self, number: int, take: Change | None = None) -> list[str]:
        """One step, taken by the optimizer or otherwise; what is found in it."""
        assert self.optimizer is not None
        before = len(self.findings.kept)
        self.watch.before_step()
        self.optimizer.zero_grad(set_to_none=False)
        self.watch.before_first_forward()
        for parameter in self.stage.parameters():
            gradient = torch.randn_like(parameter) * 10.0 ** float(torch.randint(-12, 4, ()))
            gradient[torch.rand_like(gradient) < 0.2] = 0.0
            parameter.grad = gradient
        (take or (lambda optimizer: optimizer.step()))(self.optimizer)
        self.watch.after_step(number)
        return [finding.cause for finding in self.findings.kept[before:]]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rule", RULES)
def test_true_steps_are_within_rounding(rule: str, dtype: str) -> None:
    trained = Trained(rule, dtype)
    assert [trained.step(n) for n in range(60)] == [[]] * 60
    assert trained.findings.looks["optimizer"] == 60


def skip(optimizer: torch.optim.Optimizer) -> None:
    pass


def twice(optimizer: torch.optim.Optimizer) -> None:
    optimizer.step()
    optimizer.step()


def faster(optimizer: torch.optim.Optimizer) -> None:
    optimizer.param_groups[0]["lr"] *= 10
    optimizer.step()
    optimizer.param_groups[0]["lr"] /= 10


def slightly_faster(optimizer: torch.optim.Optimizer) -> None:
    optimizer.param_groups[0]["lr"] *= 1.01
    optimizer.step()
    optimizer.param_groups[0]["lr"] /= 1.01


def forgetful(optimizer: torch.optim.Optimizer) -> None:
    optimizer.state.clear()
    optimizer.step()


def half(optimizer: torch.optim.Optimizer) -> None:
    held = optimizer.param_groups[0]["params"]
    optimizer.param_groups[0]["params"] = held[::2]
    optimizer.step()
    optimizer.param_groups[0]["params"] = held


def no_decay(optimizer: torch.optim.Optimizer) -> None:
    optimizer.param_groups[0]["weight_decay"] = 0.0
    optimizer.step()


def other_beta(optimizer: torch.optim.Optimizer) -> None:
    optimizer.param_groups[0]["betas"] = (0.9, 0.99)
    optimizer.step()


def upwards(optimizer: torch.optim.Optimizer) -> None:
    optimizer.param_groups[0]["maximize"] = True
    optimizer.step()


@pytest.mark.parametrize(
    ("rule", "take", "words"),
    [
        ("adam", skip, "all parameters of the stage did not move: the optimizer's step was skip"),
        ("sgd", skip, "did not move: the optimizer's step was skipped"),
        ("adam", twice, "the optimizer's step was applied twice"),
        ("sgd with weight decay", twice, "the optimizer's step was applied twice"),
        ("adam", faster, "moved 10 times as far as learning rate 0.001 gives"),
        ("sgd", faster, "moved 10 times as far as learning rate 0.1 gives"),
        ("sgd", slightly_faster, "moved 1.01 times as far"),
        ("adam", forgetful, "moved as in a first step: the optimizer's moments were lost"),
        ("sgd", half, "the optimizer does not have them"),
        ("sgd with weight decay", no_decay, "moved without weight decay"),
        ("adam with weight decay", other_beta, "the rule of adam"),
        ("sgd", upwards, "moved -1 times as far as learning rate 0.1 gives"),
    ],
)
def test_another_step_is_named(rule: str, take: Change, words: str) -> None:
    trained = Trained(rule)
    assert trained.step(0) == trained.step(1) == []
    (cause,) = trained.step(2, take)
    assert words in cause, cause


def test_the_gradient_of_the_step_before_is_stale() -> None:
    trained = Trained("adam")
    trained.step(0)
    old = [p.grad.clone() for p in trained.stage.parameters() if p.grad is not None]

    def stale(optimizer: torch.optim.Optimizer) -> None:
        parameters = list(trained.stage.parameters())
        fresh = [p.grad for p in parameters]
        for parameter, gradient in zip(parameters, old, strict=True):
            parameter.grad = gradient
        optimizer.step()
        for parameter, gradient in zip(parameters, fresh, strict=True):
            parameter.grad = gradient

    (cause,) = trained.step(1, stale)
    assert "moved by the gradient of the step before: it is stale" in cause


def test_gradients_that_were_not_zeroed_are_found_before_the_first_forward() -> None:
    trained = Trained("adam")
    trained.step(0)
    assert trained.optimizer is not None
    trained.optimizer.zero_grad = lambda **_: None  # type: ignore[method-assign,misc]
    (cause,) = trained.step(1)
    assert "gradients of the step before were still there" in cause


def test_a_parameter_that_had_no_part_need_not_move() -> None:
    trained = Trained("adam with weight decay")

    def without_first(optimizer: torch.optim.Optimizer) -> None:
        next(trained.stage.parameters()).grad = None
        optimizer.step()

    assert trained.step(0, without_first) == []


def test_large_tensors_are_looked_at_by_a_fixed_number_of_elements() -> None:
    trained = Trained("adam")
    trained.watch.before_step()
    assert trained.watch._before is not None
    assert len(trained.watch._before.values) < 9_000
