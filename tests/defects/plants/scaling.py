"""Scaling of the loss and of its gradient."""

from __future__ import annotations

import functools
from typing import Any

from torch import Tensor
from torch.nn import functional

from gnnhpc.batches.batch import MicroBatch
from gnnhpc.engines.gradient_sync import Gradients
from gnnhpc.graphs.graph import IGNORED
from gnnhpc.tasks.classification import Classification
from gnnhpc.tasks.task import Loss
from tests.defects import settings
from tests.defects.defect import planted
from tests.defects.patching import around, replace

KIND = "scaling"
defect = functools.partial(planted, kind=KIND)


@defect("gradients divided by the micro-batches twice", setting=settings.VIG)
def divided_twice() -> None:
    def divided(true: Any, gradients: Gradients) -> None:
        for flat in gradients.flats:
            flat.div_(4)
        true(gradients)

    around(Gradients, "average", divided)


@defect("gradients divided by the micro-batches twice on one stage", setting=settings.VIG_SGD)
def divided_on_one_stage() -> None:
    def divided(true: Any, gradients: Gradients) -> None:
        for flat in gradients.flats if gradients.mesh.is_first else ():
            flat.div_(4)
        true(gradients)

    around(Gradients, "average", divided)


@defect("gradients summed over micro-batches", setting=settings.VIG)
def summed_microbatches() -> None:
    """Raffi 4: each micro-batch's mean, added up."""

    def summed(loss: Loss, output: Tensor, microbatch: MicroBatch, labelled: int) -> Tensor:
        return functional.cross_entropy(output, microbatch.targets["train"])

    replace(Loss, "__call__", summed)


@defect("gradients summed over replicas", setting=settings.VIG_REPLICAS)
def summed_replicas() -> None:
    """All-reduce without the division by the number of replicas."""

    def sums(true: Any, gradients: Gradients) -> None:
        for flat in gradients.flats:
            flat.mul_(2)
        true(gradients)

    around(Gradients, "average", sums)


@defect("the mean of each chunk's mean", setting=settings.GAT)
def mean_of_masked_means() -> None:
    def mean(loss: Loss, output: Tensor, microbatch: MicroBatch, labelled: int) -> Tensor:
        count = loss.task.labelled(microbatch.targets, "train")
        return loss.task.summed_loss(output, microbatch.targets, "train") / count / 3

    replace(Loss, "__call__", mean)


@defect("the loss and its report smoothed alike", setting=settings.VIG)
def smoothed() -> None:
    """In the code that the loss, its report and a twin of the same code share."""

    def smooth(self: Any, outputs: Tensor, targets: Any, split: str = "train") -> Tensor:
        return functional.cross_entropy(
            outputs,
            targets[split],
            reduction="sum",
            ignore_index=IGNORED,
            label_smoothing=0.1,
        )

    replace(Classification, "summed_loss", smooth)


@defect("the softmax of scaled logits", setting=settings.VIG)
def temperature() -> None:
    around(
        Classification,
        "summed_loss",
        lambda true, self, outputs, *args: true(self, outputs / 2, *args),
    )


@defect("labelled nodes miscounted", setting=settings.GAT)
def miscounted() -> None:
    """The loss and its report are divided by the same wrong count."""

    def more(true: Any, task: Any, outputs: Tensor, *args: Any) -> Tensor:
        return true(task, outputs, *args) * 0.9

    around(Classification, "summed_loss", more)
