"""BatchNorm, modes and dropout, and what evaluations report."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import torch

from gnnhpc.data import cifar10_images as image_data
from gnnhpc.engines import activation_checkpointing
from gnnhpc.engines.native import ForwardOnly
from gnnhpc.engines.stage import Stage
from gnnhpc.kernels import dropout_mask as mask
from gnnhpc.models.layers import dropout
from gnnhpc.training import loop
from gnnhpc.training.loop import TrainingLoop
from gnnhpc.training.loss_and_metrics import Classification
from tests.defects import cells
from tests.defects.defect import planted, rank, replace

of_modes = functools.partial(
    planted, kind="BatchNorm and modes", cell=cells.VIG, mechanism="invariants"
)


@of_modes(
    "a stage that evaluates in training mode",
    words="in training mode at the evaluation",
    at=(Stage, "eval"),
)
def evaluates_in_training_mode(original: Any, stage: Stage) -> Stage:
    result: Stage = stage.train() if rank() == 1 else original(stage)
    return result


@of_modes(
    "training goes on in evaluation mode after an evaluation",
    words="in evaluation mode at train step 5",
    at=(TrainingLoop, "_evaluate"),
)
def trains_in_evaluation_mode(original: Any, loop: TrainingLoop) -> None:
    original(loop)
    if rank() == 0:
        loop.parts.stage.eval()


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


@of_dropout("the same dropout mask in every step", cell=cells.GAT, at=(mask, "layer_mask"))
def same_in_every_step(original: Any, seed: int, step: int, name: str, p: float) -> Any:
    return original(seed, 0, name, p)


@of_dropout(
    "dropout masks by the seed of another replica", cell=cells.GAT_REPLICAS, at=(mask, "layer_mask")
)
def other_replicas_seed(original: Any, seed: int, step: int, name: str, p: float) -> Any:
    return original(seed + rank(), step, name, p)


@of_dropout("dropout in evaluation", cell=cells.GAT, at=(dropout, "active_mask"))
def in_evaluation(original: Any, name: str, p: float, training: bool, context: Any) -> Any:
    return original(name, p, True, context)


of_evaluation = functools.partial(
    planted,
    kind="evaluation",
    cell=cells.VIG,
    mechanism="engine-parity",
    words="accuracy is reported as",
)


@of_evaluation(
    "evaluated on the training images",
    mechanism="data-digests",
    words="test pixels differ",
    at=(image_data, "load_images"),
)
def on_training_images(original: Any, config: Any, root: Any, split: str) -> Any:
    return original(config, root, "train")


@of_evaluation(
    "validation nodes reported as the test", cell=cells.GAT, at=(Classification, "metric_sums")
)
def validation_as_test(
    original: Any, task: Classification, phase: Any, outputs: Any, batch: Any
) -> Any:
    sums = original(task, phase, outputs, batch)
    if phase == "test":
        sums["accuracy"] = sums["test_accuracy"] = sums["val_accuracy"]
    return sums


@of_evaluation("accuracy counted over padding", cell=cells.GAT, at=(Classification, "metric_sums"))
def over_padding(original: Any, task: Classification, phase: Any, outputs: Any, batch: Any) -> Any:
    sums = original(task, phase, outputs, batch)
    right, _ = sums["accuracy"]
    sums["accuracy"] = (right, sum(len(each) for each in outputs))
    return sums


@of_evaluation(
    "an evaluation that moves parameters",
    mechanism="invariants",
    words="changed in the evaluation after step 5",
    at=(ForwardOnly, "run"),
)
def moves_parameters(original: Any, engine: ForwardOnly, batch: Any) -> Any:
    outputs = original(engine, batch)
    with torch.no_grad():
        for parameter in engine.plan.stage.parameters():
            parameter.mul_(1.001)
    return outputs
