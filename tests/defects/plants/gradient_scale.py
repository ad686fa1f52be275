"""The scale of the loss and of gradients."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from torch import Tensor
from torch.nn import functional

from gnnhpc.batches.batch import Batch, MicroBatch
from gnnhpc.batches.sampled.sampled_batches import SampledBatches
from gnnhpc.engines.gradient_sync import FlatGradients
from gnnhpc.training.loss_and_metrics import MeanLoss
from tests.defects import cells
from tests.defects.defect import around, planted, replace

defect = functools.partial(planted, kind="scale of loss and gradients", mechanism="engine-parity")


@defect(
    "gradients divided by the micro-batches twice", cell=cells.VIG, words="0.25 times the expected"
)
def divided_twice() -> None:
    def divided(original: Any, gradients: FlatGradients) -> None:
        for flat in gradients.flats:
            flat.div_(4)
        original(gradients)

    around(FlatGradients, "average", divided)


@defect("gradients summed over micro-batches", cell=cells.VIG, words="4 times as much")
def summed_microbatches() -> None:
    """The loss of each micro-batch is its own mean."""

    def summed(
        loss: MeanLoss, output: Tensor, microbatch: MicroBatch, valid_targets: int
    ) -> Tensor:
        return functional.cross_entropy(output, microbatch.targets["train"])

    replace(MeanLoss, "__call__", summed)


@defect("the mean of each chunk's mean", cell=cells.GAT, words="the loss is")
def mean_of_means() -> None:
    def mean(loss: MeanLoss, output: Tensor, microbatch: MicroBatch, valid_targets: int) -> Tensor:
        count = loss.task.valid_targets(microbatch.targets, "train")
        return loss.task.summed_loss(output, microbatch.targets, "train") / count / 3

    replace(MeanLoss, "__call__", mean)


@defect("gradients summed over replicas", cell=cells.VIG_REPLICAS, words="2 times the expected")
def summed_replicas() -> None:
    def summed(original: Any, gradients: FlatGradients) -> None:
        for flat in gradients.flats:
            flat.mul_(2)
        original(gradients)

    around(FlatGradients, "average", summed)


@defect(
    "an epoch's smaller last mini-batch divided by the batch size",
    cell=cells.SAMPLED,
    words="0.1875 times as much",
)
def divided_by_batch_size() -> None:
    def whole(original: Any, batches: SampledBatches, sampled: Any) -> Batch:
        batch: Batch = original(batches, sampled)
        return dataclasses.replace(batch, valid_targets=batches.samples)

    around(SampledBatches, "_batch", whole)
