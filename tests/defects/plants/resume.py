"""An attempt that resumes from a checkpoint."""

from __future__ import annotations

import functools
from typing import Any

from gnnhpc.batches.image_batches import ImageBatches
from gnnhpc.training import checkpoint
from tests.defects import cells
from tests.defects.defect import around, planted

defect = functools.partial(
    planted, kind="resume", cell=cells.VIG, mechanism="failure", how="resume"
)


def after_loading(change: Any) -> None:
    def load(original: Any, path: Any, mesh: Any, stage: Any, optimizer: Any) -> None:
        fresh = {name: tensor.clone() for name, tensor in stage.state_dict().items()}
        original(path, mesh, stage, optimizer)
        change(stage, optimizer, fresh)

    around(checkpoint, "load", load)


@defect(
    "a resume without the optimizer's state",
    mechanism="invariants",
    words="steps of block0.grapher.fc1.weight, ",
)
def without_moments() -> None:
    after_loading(lambda stage, optimizer, fresh: optimizer.state.clear())


@defect(
    "a resume that repeats the first steps' samples",
    words="inputs: train step 6",
)
def order_anew() -> None:
    def opened(original: Any, batches: ImageBatches, phase: Any, start: int, stop: int) -> Any:
        return original(batches, phase, 0, stop - start)

    around(ImageBatches, "open", opened)
