"""BatchNorm and the modes of modules."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

from gnnhpc.engines import activation_checkpointing
from gnnhpc.engines.stage import Stage
from gnnhpc.training import loop
from gnnhpc.training.loop import TrainingLoop
from tests.defects import cells
from tests.defects.defect import around, planted, rank, replace

defect = functools.partial(planted, kind="BatchNorm and modes", mechanism="invariants")


@defect(
    "a stage that evaluates in training mode",
    cell=cells.VIG,
    words="in training mode at the evaluation",
)
def evaluates_in_training_mode() -> None:
    def stays(original: Any, stage: Stage) -> Stage:
        result: Stage = stage.train() if rank() == 1 else original(stage)
        return result

    around(Stage, "eval", stays)


@defect(
    "training goes on in evaluation mode after an evaluation",
    cell=cells.VIG,
    words="in evaluation mode at train step 5",
)
def trains_in_evaluation_mode() -> None:
    def never_back(original: Any, loop: TrainingLoop) -> None:
        original(loop)
        if rank() == 0:
            loop.parts.stage.eval()

    around(TrainingLoop, "_evaluate", never_back)


@defect(
    "running statistics not averaged over replicas",
    cell=cells.VIG_REPLICAS,
    words="differ between replicas 0 and 1",
)
def not_averaged() -> None:
    replace(loop, "average_running_statistics", lambda stage, mesh: None)


@defect(
    "running statistics moved twice under recomputation",
    cell=cells.VIG.but(activation_checkpointing="always"),
    mechanism="engine-parity",
    words="buffers: block0.grapher.norm1.running_mean",
)
def moved_twice() -> None:
    def forgets(stage: Any, timer: Any) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    replace(activation_checkpointing, "recomputed", forgets)
