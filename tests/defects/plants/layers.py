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
from gnnhpc.models.layers import dropout_layer
from gnnhpc.training import loop
from gnnhpc.training.loop import TrainingLoop
from gnnhpc.training.loss_and_metrics import Classification
from tests.defects import cells
from tests.defects.defect import planted, rank, replace

of_modes = functools.partial(
    planted, kind="BatchNorm and modes", cell=cells.VIG, mechanism="invariants"
)


@of_modes(words="in training mode at the evaluation", at=(Stage, "eval"))
def a_stage_that_evaluates_in_training_mode(original: Any, stage: Stage) -> Stage:
    result: Stage = stage.train() if rank() == 1 else original(stage)
    return result


@of_modes(words="in evaluation mode at train step 5", at=(TrainingLoop, "_evaluate"))
def training_goes_on_in_evaluation_mode(original: Any, loop: TrainingLoop) -> None:
    original(loop)
    if rank() == 0:
        loop.parts.stage.eval()


@of_modes(cell=cells.VIG_REPLICAS, words="differ between replicas 0 and 1")
def running_statistics_not_averaged_over_replicas() -> None:
    replace(loop, "average_running_statistics", lambda stage, mesh: None)


@of_modes(
    cell=cells.VIG.but(activation_checkpointing="always"),
    mechanism="engine-parity",
    words="buffers: block0.grapher.norm1.running_mean",
)
def statistics_moved_twice_under_recomputation() -> None:
    replace(activation_checkpointing, "recomputed", lambda *_: contextlib.nullcontext())


of_dropout = functools.partial(
    planted, kind="dropout", mechanism="engine-parity", words="outputs: layer0.dropout"
)


@of_dropout(cell=cells.GAT, at=(mask, "layer_mask"))
def the_same_dropout_mask_in_every_step(
    original: Any, seed: int, step: int, name: str, p: float
) -> Any:
    return original(seed, 0, name, p)


@of_dropout(cell=cells.GAT_REPLICAS, at=(mask, "layer_mask"))
def dropout_masks_by_the_seed_of_another_replica(
    original: Any, seed: int, step: int, name: str, p: float
) -> Any:
    return original(seed + rank(), step, name, p)


@of_dropout(cell=cells.GAT, at=(dropout_layer, "active_mask"))
def dropout_in_evaluation(original: Any, name: str, p: float, training: bool, context: Any) -> Any:
    return original(name, p, True, context)


of_evaluation = functools.partial(
    planted,
    kind="evaluation",
    cell=cells.VIG,
    mechanism="engine-parity",
    words="accuracy is reported as",
)


@of_evaluation(mechanism="data-digests", words="test pixels differ", at=(image_data, "load_images"))
def evaluated_on_the_training_images(original: Any, config: Any, root: Any, split: str) -> Any:
    return original(config, root, "train")


@of_evaluation(cell=cells.GAT, at=(Classification, "metric_sums"))
def validation_nodes_reported_as_the_test(
    original: Any, task: Classification, phase: Any, outputs: Any, batch: Any
) -> Any:
    sums = original(task, phase, outputs, batch)
    if phase == "test":
        sums["accuracy"] = sums["test_accuracy"] = sums["val_accuracy"]
    return sums


@of_evaluation(cell=cells.GAT, at=(Classification, "metric_sums"))
def accuracy_counted_over_padding(
    original: Any, task: Classification, phase: Any, outputs: Any, batch: Any
) -> Any:
    sums = original(task, phase, outputs, batch)
    right, _ = sums["accuracy"]
    sums["accuracy"] = (right, sum(len(each) for each in outputs))
    return sums


@of_evaluation(
    mechanism="invariants", words="changed in the evaluation after step 5", at=(ForwardOnly, "run")
)
def an_evaluation_that_moves_parameters(original: Any, engine: ForwardOnly, batch: Any) -> Any:
    outputs = original(engine, batch)
    with torch.no_grad():
        for parameter in engine.plan.stage.parameters():
            parameter.mul_(1.001)
    return outputs
