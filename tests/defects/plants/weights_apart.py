"""Gradients of weights apart from a backward: lost, too early, too late, booked elsewhere."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from gnnhpc.engines import native
from gnnhpc.engines.native import Held, NativeEngine
from gnnhpc.engines.part_links import PartLinks
from gnnhpc.engines.timing import OpenSpan, StepTimer
from gnnhpc.models.later_weights import LeftGradient
from tests.defects import settings
from tests.defects.defect import planted
from tests.defects.patching import Steps, around, rank
from tests.defects.plants.timing import change_record

KIND = "weights apart"
defect = functools.partial(planted, kind=KIND, setting=settings.GAT_WEIGHTS)


@defect("one micro-batch's gradients of weights never computed, later in the run")
def never_computed() -> None:
    steps = Steps()

    def weights(true: Any, engine: NativeEngine, links: PartLinks, m: int, held: Held) -> None:
        if steps.late and rank() == 0 and m == 2:
            return
        true(engine, links, m, held)

    around(NativeEngine, "_weights", weights)


@defect("gradients of weights computed in the next step, later in the run")
def next_step() -> None:
    steps = Steps()
    late: list[LeftGradient] = []

    def weights(true: Any, engine: NativeEngine, links: PartLinks, m: int, held: Held) -> None:
        if steps.late and m == 3 and held.later is not None:
            held.later.left, late[:] = [*late], held.later.left
        true(engine, links, m, held)

    around(NativeEngine, "_weights", weights)


@defect("gradients of weights computed with the backward, told as apart")
def with_the_backward() -> None:
    @contextlib.contextmanager
    def nothing_left(*_: Any) -> Iterator[None]:
        yield

    native.apart = native.leaving = nothing_left  # type: ignore[assignment]


@defect("gradients of weights computed at once on the last stage")
def at_once() -> None:
    """Which the first stage then waits for."""

    def build(true: Any, engine: NativeEngine, plan: Any) -> None:
        true(engine, plan)
        if rank() == 1:
            rest = [action for action in engine.order if action.kind != "weights"]
            own = [action for action in engine.order if action.kind == "weights"]
            engine.order = []
            for action in rest:
                engine.order.append(action)
                if action.kind == "backward":
                    engine.order.append(own.pop(0))

    around(NativeEngine, "__init__", build)


@defect("a received input overwritten before its weights' gradients are computed")
def overwritten() -> None:
    def backward(true: Any, engine: NativeEngine, links: PartLinks, m: int, held: Held) -> None:
        true(engine, links, m, held)
        if links.activations_in is not None and isinstance(held.x, Tensor):
            held.x.data.zero_()

    around(NativeEngine, "_backward", backward)


@defect("gradients of weights booked as backward")
def booked_as_backward() -> None:
    def begin(true: Any, timer: StepTimer, name: Any, *args: Any) -> OpenSpan:
        opened: OpenSpan = true(timer, "backward" if name == "weights" else name, *args)
        return opened

    around(StepTimer, "begin", begin)


@defect("the rest of each backward of inputs booked as waiting", setting=settings.GIN_WEIGHTS)
def rest_is_waiting() -> None:
    """And with it what the layers took then: no layer takes longer than the stage."""

    def end(true: Any, timer: StepTimer, opened: OpenSpan) -> None:
        true(timer, opened)
        if opened.name == "backward":
            start, until = opened.start, opened.end
            assert isinstance(start, float)
            assert isinstance(until, float)
            opened.end = at = start + (until - start) / 2
            timer._backward = [(name, min(float(mark), at)) for name, mark in timer._backward]

    around(StepTimer, "end", end)


@defect("half of the seconds of weights in the record")
def half_the_seconds() -> None:
    change_record(lambda r: dataclasses.replace(r, weights_s=r.weights_s and r.weights_s / 2))


@defect("waiting after a micro-batch's weights booked as theirs")
def waiting_booked() -> None:
    def weights(true: Any, engine: NativeEngine, links: PartLinks, m: int, held: Held) -> None:
        true(engine, links, m, held)
        opened = next(o for o in reversed(engine.plan.timer._open) if o.name == "weights")
        time.sleep(0.01)
        engine.plan.timer.end(opened)

    around(NativeEngine, "_weights", weights)


@defect("one replica's gradients of weights after they were averaged", setting=settings.GCN_WEIGHTS)
def after_averaging() -> None:
    def build(true: Any, engine: NativeEngine, plan: Any) -> None:
        true(engine, plan)
        average = engine.gradients.average
        kept: list[tuple[PartLinks, int, Held]] = []

        def later(true: Any, *args: Any) -> None:
            if rank() == 2 and args[1] == 2:
                kept.append(args)  # type: ignore[arg-type]
            else:
                true(*args)

        def averaged() -> None:
            average()
            for args in kept:
                weights(*args)
            kept.clear()

        weights = engine._weights
        engine._weights = functools.partial(later, weights)  # type: ignore[method-assign]
        engine.gradients.average = averaged  # type: ignore[method-assign]

    around(NativeEngine, "__init__", build)
