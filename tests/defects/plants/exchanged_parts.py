"""Several parts of the model a stage: what is one part's done, given or told of another."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from gnnhpc.engines.gradient_sync import Gradients
from gnnhpc.engines.native import NativeEngine
from gnnhpc.engines.stage import Stage
from gnnhpc.engines.timing import OpenSpan, SpanName, StepTimer
from gnnhpc.engines.torch_pipelining import PipeliningEngine
from gnnhpc.models.context import Context
from gnnhpc.training import setup
from tests.defects import settings
from tests.defects.defect import planted
from tests.defects.patching import Steps, around, rank
from tests.defects.plants.several_parts import KIND

defect = functools.partial(planted, kind=KIND)


def _second_of_first_stage(stage: Stage) -> bool:
    return rank() == 0 and stage.outlines[0].name == "block1.grapher"


@defect("spans of a stage's parts booked to each other", setting=settings.VIG_PARTS)
def spans_exchanged() -> None:
    def begin(
        true: Any, timer: StepTimer, name: SpanName, m: int | None = None, part: int = 0
    ) -> OpenSpan:
        other = rank() == 0 and name in ("forward", "backward")
        opened: OpenSpan = true(timer, name, m, 1 - part if other else part)
        return opened

    around(StepTimer, "begin", begin)


@defect("a part's forwards booked to other micro-batches", setting=settings.VIG_PARTS)
def microbatches_exchanged() -> None:
    def begin(
        true: Any, timer: StepTimer, name: SpanName, m: int | None = None, part: int = 0
    ) -> OpenSpan:
        if m is not None and (rank(), name, part) == (0, "forward", 1):
            m ^= 1
        opened: OpenSpan = true(timer, name, m, part)
        return opened

    around(StepTimer, "begin", begin)


@defect("two actions exchanged late in the interleaved schedule", setting=settings.VIG_PARTS)
def order_exchanged() -> None:
    """On the last stage, the last forward and the backward before it."""

    def build(true: Any, engine: NativeEngine, plan: Any) -> None:
        true(engine, plan)
        if rank() == 1:
            last = max(n for n, action in enumerate(engine.order) if action.kind == "forward")
            backward, forward = engine.order[last - 1 : last + 1]
            engine.order[last - 1 : last + 1] = [forward, backward]

    around(NativeEngine, "__init__", build)


@defect("one part computed again for what another was to be", setting=settings.VIG_PARTS_AGAIN)
def computed_again_for_another() -> None:
    def set_up(true: Any, *args: Any, **kwargs: Any) -> Any:
        found = true(*args, **kwargs)
        first, second = found.stage.parts
        first.recomputed, second.recomputed = range(4), range(2)
        return found

    around(setup, "set_up", set_up)


@defect("a later part evaluated of another micro-batch's input", setting=settings.VIG_PARTS)
def evaluated_of_another() -> None:
    """Of the micro-batch before."""
    held: list[Tensor] = []

    def forward(true: Any, stage: Stage, x: Tensor, context: Context) -> Tensor:
        if _second_of_first_stage(stage) and not stage.layers[0].training:
            held.append(x.clone())
            if context.microbatch:
                x.copy_(held[-2])
        output: Tensor = true(stage, x, context)
        return output

    around(Stage, "_through_layers", forward)


@defect("a later part that trains in evaluation mode for two steps", setting=settings.VIG_PARTS)
def evaluates_in_training() -> None:
    steps = Steps()

    def forward(true: Any, stage: Stage, x: Any, context: Context) -> Tensor:
        changes = _second_of_first_stage(stage) and torch.is_grad_enabled()
        changes = changes and steps.taken in (5, 6)
        if changes:
            stage.eval()
        output: Tensor = true(stage, x, context)
        if changes:
            stage.train()
        return output

    around(Stage, "forward", forward)


@defect("one replica with a stage's parts exchanged", setting=settings.VIG_PARTS_REPLICAS)
def one_replica() -> None:
    def build(true: Any, *args: Any) -> Stage:
        stage: Stage = true(*args)
        if rank() == 2 and stage.apart:
            stage._parts = stage._parts[::-1]
        return stage

    around(setup, "build_stage", build)


@defect("one part's gradients not shared by the replicas", setting=settings.VIG_PARTS_REPLICAS)
def part_not_shared() -> None:
    """The first half of the buffer, which begins with the first part's."""

    def average(true: Any, gradients: Gradients) -> None:
        flat = gradients.flats[0]
        first = len(flat) // 2
        own = flat[:first].clone()
        true(gradients)
        flat[:first] = own

    around(Gradients, "average", average)


@defect("parts exchanged under torch's schedule", setting=settings.VIG_PARTS_TORCH)
def exchanged_under_torch() -> None:
    def build(true: Any, engine: PipeliningEngine, plan: Any) -> None:
        true(engine, plan)
        if rank() == 0:
            first, second = engine.numbered
            first.stage, second.stage = second.stage, first.stage

    around(PipeliningEngine, "__init__", build)
