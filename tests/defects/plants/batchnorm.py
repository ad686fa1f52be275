"""BatchNorm and the modes of modules."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

from gnnhpc.engines import torchgpipe_partition
from gnnhpc.engines.stage import Stage
from gnnhpc.models import batchnorm, recomputation
from gnnhpc.train.loop import Trainer
from tests.defects import cells
from tests.defects.defect import around, planted, rank, replace

defect = functools.partial(
    planted, kind="BatchNorm and modes", mechanism="invariants", words="mode"
)
parity = functools.partial(defect, mechanism="engine-parity", words="")


@defect("a stage that evaluates in training mode", cell=cells.VIG)
def evaluates_in_training_mode() -> None:
    def stays(original: Any, stage: Stage) -> Stage:
        result: Stage = stage.train() if rank() == 1 else original(stage)
        return result

    around(Stage, "eval", stays)


@defect("training goes on in evaluation mode after an evaluation", cell=cells.VIG)
def trains_in_evaluation_mode() -> None:
    def never_back(original: Any, trainer: Trainer) -> None:
        original(trainer)
        if rank() == 0:
            trainer.stage.eval()

    around(Trainer, "_evaluate", never_back)


@defect("running statistics not averaged over replicas", cell=cells.VIG_REPLICAS, words="replica")
def not_averaged() -> None:
    replace(Trainer, "_average_running_statistics", lambda trainer: None)


@parity("running statistics moved twice under recomputation", cell=cells.VIG_GPIPE)
def moved_twice() -> None:
    @contextlib.contextmanager
    def keeping_nothing(modules: Any) -> Iterator[None]:
        recomputation._of_thread.recomputing = True
        yield
        recomputation._of_thread.recomputing = False

    replace(torchgpipe_partition, "recomputing", keeping_nothing)
    batchnorm.is_recomputing = lambda: False
