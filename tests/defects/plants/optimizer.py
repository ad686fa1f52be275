"""The optimizer of one stage or replica."""

from __future__ import annotations

import functools
from typing import Any

import torch

from gnnhpc.engines.gradient_sync import FlatGradients
from gnnhpc.optimizers.optimizer import without_compiler
from gnnhpc.training import setup as module
from tests.defects import cells
from tests.defects.defect import around, planted, rank, replace

defect = functools.partial(planted, kind="optimizer", cell=cells.VIG, mechanism="engine-parity")
ADAM, SGD = without_compiler("Adam"), without_compiler("SGD")


def change_built(change: Any) -> None:
    """Change the optimizer that a rank builds."""

    def changed(original: Any, *args: Any) -> Any:
        optimizer = original(*args)
        change(optimizer)
        return optimizer

    around(module, "build_optimizer", changed)


@defect(words="moves 0 times as far", at=(ADAM, "step"))
def an_optimizer_step_skipped_on_one_stage(original: Any, optimizer: Any) -> None:
    if rank() != 1:
        original(optimizer)


@defect(cell=cells.VIG.but(optimizer=cells.SGD), words="moves 2 times as far", at=(SGD, "step"))
def an_optimizer_step_taken_twice(original: Any, optimizer: Any) -> None:
    original(optimizer)
    original(optimizer)


@defect(words="moves 10 times as far")
def a_learning_rate_too_high_on_one_stage() -> None:
    if rank() == 1:
        change_built(lambda o: o.param_groups[0].update(lr=o.param_groups[0]["lr"] * 10))


@defect(
    cell=cells.VIG_REPLICAS.but(optimizer=cells.SGD),
    words="update: block0.grapher.fc1.weight on replica 1",
)
def one_replica_without_weight_decay() -> None:
    if rank() == 1:
        change_built(lambda o: o.param_groups[0].update(weight_decay=0.0))


@defect(words="moves 0 times as far")
def half_of_the_parameters_not_optimized() -> None:
    def halved(optimizer: torch.optim.Optimizer) -> None:
        optimizer.param_groups[0]["params"] = optimizer.param_groups[0]["params"][::2]

    change_built(halved)


@defect(words="in step 1 as adam's rule", at=(ADAM, "step"))
def moments_reset_before_each_step(original: Any, optimizer: torch.optim.Optimizer) -> None:
    optimizer.state.clear()
    original(optimizer)


@defect(words="gradients: step 1")
def gradients_of_the_step_before_not_zeroed() -> None:
    replace(FlatGradients, "zero", lambda gradients: None)
