"""Steps that are timed wrongly."""

from __future__ import annotations

import functools
import itertools
import time
from typing import Any

from gnnhpc.distributed.mesh import Mesh
from gnnhpc.engines.native import NativeEngine
from gnnhpc.engines.step_timer import StepTimer, StepTimes
from gnnhpc.training.loop import TrainingLoop
from tests.defects import cells
from tests.defects.defect import around, planted, rank

defect = functools.partial(planted, kind="timing", mechanism="record-audit")
LEFT_OUT_S = 0.5
"""Seconds that are left out of a step of milliseconds: a busy machine hides what is short."""


@defect(
    "a step timed without waiting for the other ranks", cell=cells.VIG, words="those of most ranks"
)
def no_last_barrier() -> None:
    """The first stage has more to do at the end of a step than the second one."""

    def step(original: Any, loop: TrainingLoop, *args: Any) -> Any:
        barriers, mesh = itertools.count(), loop.mesh

        def first_alone() -> None:
            if next(barriers) == 0:
                Mesh.barrier(mesh)

        object.__setattr__(mesh, "barrier", first_alone)
        try:
            return original(loop, *args)
        finally:
            object.__delattr__(mesh, "barrier")

    def train(original: Any, engine: NativeEngine, batch: Any) -> Any:
        output = original(engine, batch)
        time.sleep(0.0 if rank() else LEFT_OUT_S)
        return output

    around(TrainingLoop, "_take_step", step)
    around(NativeEngine, "train_step", train)


@defect(
    "a step timed without waiting for the device",
    cell=cells.VIG_SEQ,
    words="s between two steps of",
)
def device_not_awaited() -> None:
    """Imitated: most of a step's work is done after the clock has stopped."""

    def stop(original: Any, timer: StepTimer) -> StepTimes:
        times: StepTimes = original(timer)
        time.sleep(LEFT_OUT_S)
        return times

    around(StepTimer, "stop", stop)


@defect("a clock that starts late", cell=cells.VIG_SEQ, words="s between two steps of")
def late_start() -> None:
    def start(original: Any, timer: StepTimer, **options: Any) -> None:
        time.sleep(LEFT_OUT_S)
        original(timer, **options)

    around(StepTimer, "start", start)
