"""Evaluations: on which samples, with which outputs, counted how."""

from __future__ import annotations

import functools
from typing import Any

import torch

from gnnhpc.data import images as image_data
from gnnhpc.engines.native import ForwardOnly
from gnnhpc.training.loss_and_metrics import Classification
from tests.defects import cells
from tests.defects.defect import around, planted

defect = functools.partial(
    planted, kind="evaluation", mechanism="engine-parity", words="accuracy is reported as"
)


@defect(
    "evaluated on the training images",
    cell=cells.VIG,
    mechanism="data-digests",
    words="test pixels differ",
)
def on_training_images() -> None:
    def same(original: Any, config: Any, root: Any, split: str) -> Any:
        return original(config, root, "train")

    around(image_data, "load_images", same)


@defect("validation nodes reported as the test", cell=cells.GAT)
def validation_as_test() -> None:
    def validation(
        original: Any, task: Classification, phase: Any, outputs: Any, batch: Any
    ) -> Any:
        sums = original(task, phase, outputs, batch)
        if phase == "test":
            sums["accuracy"] = sums["test_accuracy"] = sums["val_accuracy"]
        return sums

    around(Classification, "metric_sums", validation)


@defect("accuracy counted over padding", cell=cells.GAT)
def over_padding() -> None:
    def padded(original: Any, task: Classification, phase: Any, outputs: Any, batch: Any) -> Any:
        sums = original(task, phase, outputs, batch)
        right, _ = sums["accuracy"]
        sums["accuracy"] = (right, sum(len(each) for each in outputs))
        return sums

    around(Classification, "metric_sums", padded)


@defect(
    "an evaluation that moves parameters",
    cell=cells.VIG,
    mechanism="invariants",
    words="changed in the evaluation after step 5",
)
def moves_parameters() -> None:
    def moved(original: Any, engine: ForwardOnly, batch: Any) -> Any:
        outputs = original(engine, batch)
        with torch.no_grad():
            for parameter in engine.plan.stage.parameters():
                parameter.mul_(1.001)
        return outputs

    around(ForwardOnly, "run", moved)
