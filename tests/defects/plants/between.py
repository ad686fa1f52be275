"""What changes a stage or its optimizer between two steps."""

from __future__ import annotations

import functools
from typing import Any

import torch

from gnnhpc.models.batchnorm import BatchNorm
from gnnhpc.training import checkpoint
from gnnhpc.training.loop import TrainingLoop
from tests.defects import settings
from tests.defects.defect import planted
from tests.defects.patching import around

KIND = "state between steps"
defect = functools.partial(planted, kind=KIND)


def after_evaluations(change: Any) -> None:
    """Change the trainer after each evaluation but the last."""

    def evaluate(true: Any, trainer: Trainer) -> None:
        true(trainer)
        if trainer.test_steps_done == trainer.experiment.test_steps:
            change(trainer)

    around(Trainer, "_evaluate", evaluate)


@defect("running statistics reset after an evaluation in mid-run", setting=settings.VIG)
def statistics_reset() -> None:
    def reset(trainer: Trainer) -> None:
        for module in trainer.stage.modules():
            if isinstance(module, BatchNorm):
                module.reset_running_stats()

    after_evaluations(reset)


@defect("Adam's state cleared after an evaluation in mid-run", setting=settings.VIG)
def moments_cleared() -> None:
    after_evaluations(lambda trainer: trainer.optimizer.state.clear())


@defect("parameters shrunk before an evaluation in mid-run", setting=settings.VIG)
def shrunk() -> None:
    @torch.no_grad()
    def shrink(trainer: Trainer) -> None:
        for parameter in trainer.stage.parameters():
            parameter.mul_(0.9)

    def evaluate(true: Any, trainer: Trainer) -> None:
        if trainer.test_steps_done == 0 and trainer.experiment.test_every:
            shrink(trainer)
        true(trainer)

    around(Trainer, "_evaluate", evaluate)


@defect("a layer frozen in mid-run", setting=settings.VIG)
def frozen() -> None:
    def freeze(trainer: Trainer) -> None:
        for parameter in trainer.stage.layers[0].parameters():
            parameter.requires_grad_(False)

    after_evaluations(freeze)


@defect("a checkpoint that leaves parameters in half precision", setting=settings.VIG_CHECKPOINTS)
def rounded() -> None:
    @torch.no_grad()
    def save(true: Any, attempt: Any, mesh: Any, stage: Any, *args: Any, **named: Any) -> Any:
        found = true(attempt, mesh, stage, *args, **named)
        for parameter in stage.parameters():
            parameter.copy_(parameter.bfloat16())
        return found

    around(checkpoint, "save", save)
