"""Several parts of the model a stage: parts taken for each other, another order, other seconds."""

from __future__ import annotations

import dataclasses
import functools
import time
from typing import Any

import torch
from torch import Tensor

from gnnhpc.engines.native import NativeEngine
from gnnhpc.engines.part_links import PartLinks
from gnnhpc.engines.stage import Stage
from gnnhpc.models.context import Context
from gnnhpc.training import setup
from gnnhpc.training.loop import TrainingLoop
from tests.defects import settings
from tests.defects.defect import planted
from tests.defects.patching import Steps, around, rank

KIND = "several parts a stage"
defect = functools.partial(planted, kind=KIND)


@defect("the input of one part of a stage taken for another's", setting=settings.VIG_PARTS)
def not_told_apart() -> None:
    held: dict[int, Tensor] = {}

    def received(true: Any, engine: NativeEngine, links: PartLinks, m: int) -> Any:
        x = true(engine, links, m)
        if rank() == 1 and links.part.place == 0:
            held[m] = x.clone()
        elif rank() == 1:
            x.copy_(held[m])
        return x

    around(NativeEngine, "_received", received)


@defect("parts of a stage in another order than planned", setting=settings.VIG_PARTS)
def other_parts() -> None:
    def build(true: Any, *args: Any) -> Stage:
        stage: Stage = true(*args)
        if rank() == 0 and stage.apart:
            stage._parts = stage._parts[::-1]
        return stage

    around(setup, "build_stage", build)


@defect("a later part's gradients lost, later in the run", setting=settings.VIG_PARTS)
def gradients_lost() -> None:
    steps = Steps()

    def linked(true: Any, links: PartLinks, *args: Any, **kwargs: Any) -> None:
        true(links, *args, **kwargs)
        sender = links.gradients_out
        if sender is not None and rank() == 0:
            send = sender.send
            sender.send = lambda t: send(torch.zeros_like(t) if steps.late else t)  # type: ignore[method-assign]

    around(PartLinks, "__init__", linked)


@defect("a first backward later than the interleaved schedule's", setting=settings.VIG_PARTS)
def other_order() -> None:
    """On the last stage, after one forward more."""

    def build(true: Any, engine: NativeEngine, plan: Any) -> None:
        true(engine, plan)
        if rank() == 1:
            first = [action.kind for action in engine.order].index("backward")
            backward, forward = engine.order[first : first + 2]
            engine.order[first : first + 2] = [forward, backward]

    around(NativeEngine, "__init__", build)


@defect("seconds of a stage's parts exchanged in the record", setting=settings.VIG_PARTS)
def seconds_exchanged() -> None:
    def exchanged(true: Any, trainer: Trainer, times: Any) -> list[list[float]] | None:
        told: list[list[float]] | None = true(trainer, times)
        return told and told[::-1]

    around(Trainer, "_part_s", exchanged)


@defect("waiting for a later part's input booked as its forward", setting=settings.VIG_PARTS)
def wait_as_forward() -> None:
    def step(true: Any, engine: NativeEngine, *args: Any) -> Any:
        # The other stage is late, so that there is something to wait for.
        if rank() == 1:
            time.sleep(0.05)
        return true(engine, *args)

    def taken(true: Any, engine: NativeEngine, links: PartLinks, m: int) -> Any:
        receiver = links.activations_in
        if receiver is None or links.part.place == 0:
            return true(engine, links, m)
        with engine.plan.timer.span("forward", m, links.part.place):
            return receiver.take()

    around(NativeEngine, "train_step", step)
    around(NativeEngine, "_received", taken)


@defect("a later part given another step's masks", setting=settings.GAT_PARTS)
def other_context() -> None:
    def forward(true: Any, stage: Stage, x: Any, context: Context) -> Tensor:
        later = rank() == 0 and stage.training and stage._first_change > 0
        number = context.step + 1 if later and context.step > 2 else context.step
        output: Tensor = true(stage, x, dataclasses.replace(context, step=number))
        return output

    around(Stage, "forward", forward)
