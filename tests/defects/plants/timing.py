"""Steps that are timed wrongly."""

from __future__ import annotations

import functools
import itertools
import time
from typing import Any

from gnnhpc.distributed.mesh import Mesh
from gnnhpc.engines.step_timer import StepTimer, StepTimes
from gnnhpc.training.loop import TrainingLoop
from tests.defects import cells
from tests.defects.defect import around, planted

defect = functools.partial(planted, kind="timing", mechanism="record-audit")
BETWEEN_S = 0.2
"""Seconds that are in no step, where a step takes milliseconds."""
UNEQUAL = cells.VIG.but(
    microbatches=1, balance=[4, 1], data={"image_size": 16}, train_steps=100, test_every=None
)
"""The second stage has done its part when the backward of the first begins."""


@defect(
    "a step timed without waiting for the other ranks", cell=UNEQUAL, words="those of most ranks"
)
def no_last_barrier() -> None:
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

    around(TrainingLoop, "_take_step", step)


@defect(
    "a step timed without waiting for the device",
    cell=cells.VIG_SEQ,
    words="s between two steps of",
)
def device_not_awaited() -> None:
    """Imitated: most of a step's work is done after the clock has stopped."""

    def stop(original: Any, timer: StepTimer) -> StepTimes:
        times: StepTimes = original(timer)
        time.sleep(BETWEEN_S)
        return times

    around(StepTimer, "stop", stop)


@defect("a clock that starts late", cell=cells.VIG_SEQ, words="s between two steps of")
def late_start() -> None:
    def start(original: Any, timer: StepTimer, **options: Any) -> None:
        time.sleep(BETWEEN_S)
        original(timer, **options)

    around(StepTimer, "start", start)
