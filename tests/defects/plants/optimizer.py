"""Optimizer and learning rate."""

from __future__ import annotations

import functools
from typing import Any

import torch

from gnnhpc.batches.batch import Batch
from gnnhpc.training import optimizer as module
from gnnhpc.training.loop import TrainingLoop
from tests.defects import settings
from tests.defects.defect import planted
from tests.defects.patching import Steps, around, is_unseen, rank

KIND = "optimizer and learning rate"
defect = functools.partial(planted, kind=KIND)
KINDS: tuple[Any, ...] = (module._Adam, module._SGD)


def change_built(change: Any) -> None:
    """Change the optimizer that a rank builds."""

    def changed(true: Any, *args: Any) -> Any:
        optimizer = true(*args)
        change(optimizer)
        return optimizer

    around(module, "build_optimizer", changed)


@defect("optimizer step skipped on one stage", setting=settings.VIG)
def skipped() -> None:
    if rank() == 1:
        for kind in KINDS:
            around(kind, "step", lambda true, optimizer: None)


@defect("optimizer step skipped now and then, later in the run", setting=settings.VIG)
def skipped_late() -> None:
    steps = Steps()
    for kind in KINDS:
        around(kind, "step", lambda true, o: None if steps.late and steps.taken % 2 else true(o))


@defect("optimizer step taken twice", setting=settings.VIG_SGD)
def twice() -> None:
    for kind in KINDS:
        around(kind, "step", lambda true, optimizer: (true(optimizer), true(optimizer)))


@defect("learning rate ten times too high on one stage", setting=settings.VIG)
def too_high() -> None:
    if rank() == 1:
        change_built(lambda o: o.param_groups[0].update(lr=o.param_groups[0]["lr"] * 10))


@defect("learning rate that decays unasked, later in the run", setting=settings.VIG)
def decays() -> None:
    steps = Steps()

    def decayed(true: Any, optimizer: torch.optim.Optimizer) -> None:
        if steps.late:
            optimizer.param_groups[0]["lr"] *= 0.5
        true(optimizer)

    for kind in KINDS:
        around(kind, "step", decayed)


@defect("learning rate too high where no look was drawn", setting=settings.VIG_LONG_EPOCH)
def too_high_unseen() -> None:
    def step(true: Any, trainer: Trainer, number: int, batch: Batch) -> Any:
        factor = 3.0 if is_unseen(trainer.experiment, number) else 1.0
        groups = trainer.optimizer.param_groups if trainer.optimizer else []
        for group in groups:
            group["lr"] *= factor
        found = true(trainer, number, batch)
        for group in groups:
            group["lr"] /= factor
        return found

    around(Trainer, "_train_step", step)


@defect("weight decay forgotten", setting=settings.VIG_SGD)
def no_decay() -> None:
    change_built(lambda o: o.param_groups[0].update(weight_decay=0.0))


@defect("half of the parameters not given to the optimizer", setting=settings.VIG)
def half() -> None:
    def halved(optimizer: torch.optim.Optimizer) -> None:
        optimizer.param_groups[0]["params"] = optimizer.param_groups[0]["params"][::2]

    change_built(halved)


@defect("Adam's moments forgotten before each step", setting=settings.VIG)
def forgotten() -> None:
    def forgetful(true: Any, optimizer: torch.optim.Optimizer) -> None:
        optimizer.state.clear()
        true(optimizer)

    around(module._Adam, "step", forgetful)


@defect("Adam with other betas", setting=settings.VIG)
def betas() -> None:
    change_built(lambda o: o.param_groups[0].update(betas=(0.9, 0.9)))


@defect("gradients clipped unasked", setting=settings.VIG_SGD)
def clipped() -> None:
    def clips(true: Any, optimizer: torch.optim.Optimizer) -> None:
        torch.nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 0.1)
        true(optimizer)

    around(module._SGD, "step", clips)


@defect("gradients left over from the step before", setting=settings.VIG)
def left_over() -> None:
    for kind in KINDS:
        around(kind, "zero_grad", lambda true, *args, **kwargs: None)
