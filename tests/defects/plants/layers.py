"""BatchNorm, modes and dropout, and what evaluations report."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import torch

from gnnhpc.data import images as image_data
from gnnhpc.engines import activation_checkpointing
from gnnhpc.engines.native import ForwardOnly
from gnnhpc.engines.stage import Stage
from gnnhpc.kernels import dropout_mask as mask
from gnnhpc.models.layers import dropout
from gnnhpc.training import loop
from gnnhpc.training.loop import TrainingLoop
from gnnhpc.training.loss_and_metrics import Classification
from tests.defects import cells
from tests.defects.defect import around, planted, rank, replace

of_modes = functools.partial(planted, kind="BatchNorm and modes", mechanism="invariants")


@of_modes(
    "a stage that evaluates in training mode",
    cell=cells.VIG,
    words="in training mode at the evaluation",
)
def evaluates_in_training_mode() -> None:
    def stays(original: Any, stage: Stage) -> Stage:
        result: Stage = stage.train() if rank() == 1 else original(stage)
        return result

    around(Stage, "eval", stays)


@of_modes(
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


@of_modes(
    "running statistics not averaged over replicas",
    cell=cells.VIG_REPLICAS,
    words="differ between replicas 0 and 1",
)
def not_averaged() -> None:
    replace(loop, "average_running_statistics", lambda stage, mesh: None)


@of_modes(
    "running statistics moved twice under recomputation",
    cell=cells.VIG.but(activation_checkpointing="always"),
    mechanism="engine-parity",
    words="buffers: block0.grapher.norm1.running_mean",
)
def moved_twice() -> None:
    def forgets(stage: Any, timer: Any) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    replace(activation_checkpointing, "recomputed", forgets)


of_dropout = functools.partial(
    planted, kind="dropout", mechanism="engine-parity", words="outputs: layer0.dropout"
)


@of_dropout("the same dropout mask in every step", cell=cells.GAT)
def same_in_every_step() -> None:
    def first(original: Any, seed: int, step: int, name: str, p: float) -> Any:
        return original(seed, 0, name, p)

    around(mask, "layer_mask", first)


@of_dropout("dropout masks by the seed of another replica", cell=cells.GAT_REPLICAS)
def other_replicas_seed() -> None:
    def own(original: Any, seed: int, step: int, name: str, p: float) -> Any:
        return original(seed + rank(), step, name, p)

    around(mask, "layer_mask", own)


@of_dropout("dropout in evaluation", cell=cells.GAT)
def in_evaluation() -> None:
    def always(original: Any, name: str, p: float, training: bool, context: Any) -> Any:
        return original(name, p, True, context)

    around(dropout, "active_mask", always)


of_evaluation = functools.partial(
    planted, kind="evaluation", mechanism="engine-parity", words="accuracy is reported as"
)


@of_evaluation(
    "evaluated on the training images",
    cell=cells.VIG,
    mechanism="data-digests",
    words="test pixels differ",
)
def on_training_images() -> None:
    def same(original: Any, config: Any, root: Any, split: str) -> Any:
        return original(config, root, "train")

    around(image_data, "load_images", same)


@of_evaluation("validation nodes reported as the test", cell=cells.GAT)
def validation_as_test() -> None:
    def validation(
        original: Any, task: Classification, phase: Any, outputs: Any, batch: Any
    ) -> Any:
        sums = original(task, phase, outputs, batch)
        if phase == "test":
            sums["accuracy"] = sums["test_accuracy"] = sums["val_accuracy"]
        return sums

    around(Classification, "metric_sums", validation)


@of_evaluation("accuracy counted over padding", cell=cells.GAT)
def over_padding() -> None:
    def padded(original: Any, task: Classification, phase: Any, outputs: Any, batch: Any) -> Any:
        sums = original(task, phase, outputs, batch)
        right, _ = sums["accuracy"]
        sums["accuracy"] = (right, sum(len(each) for each in outputs))
        return sums

    around(Classification, "metric_sums", padded)


@of_evaluation(
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
