"""Classification of images, nodes and graphs, by cross-entropy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from gnnhpc.batches.batch import Batch
from gnnhpc.graphs.graph import IGNORED
from gnnhpc.models.model import Outputs
from gnnhpc.records.schema import Phase
from gnnhpc.tasks.task import Tally, Targets


@dataclass(frozen=True)
class Classification:
    """One class a row; rows whose target is `IGNORED` are not counted."""

    outputs: Outputs
    """What the last layer gives."""

    def summed_loss(self, outputs: Tensor, targets: Targets, split: Phase) -> Tensor:
        target = targets[split]
        if self.outputs == "log_probabilities":
            return functional.nll_loss(outputs, target, reduction="sum", ignore_index=IGNORED)
        return functional.cross_entropy(outputs, target, reduction="sum", ignore_index=IGNORED)

    def labelled(self, targets: Targets, split: Phase) -> int:
        return int((targets[split] != IGNORED).sum())

    def metrics(self, phase: Phase) -> tuple[str, ...]:
        return ("loss", "accuracy")

    def tally(self, phase: Phase, outputs: Sequence[Tensor], batch: Batch) -> Tally:
        loss = count = right = 0.0
        for output, microbatch in zip(outputs, batch.microbatches, strict=True):
            loss += float(self.summed_loss(output, microbatch.targets, phase))
            correct, labelled = _accuracy(output, microbatch.targets[phase])
            right, count = right + correct, count + labelled
        return {"loss": (loss, count), "accuracy": (right, count)}


class ImageClassification(Classification):
    """Every image has a label."""


class _WithValidation(Classification):
    """Some rows are labelled for training, others for validation and test.

    In the test phase `loss` and `accuracy` are those of the test split.
    """

    def metrics(self, phase: Phase) -> tuple[str, ...]:
        extra = () if phase == "train" else ("val_accuracy", "test_accuracy")
        return ("loss", "accuracy", *extra)

    def tally(self, phase: Phase, outputs: Sequence[Tensor], batch: Batch) -> Tally:
        tally = super().tally(phase, outputs, batch)
        if phase == "test":
            pairs = [
                _accuracy(output, microbatch.targets["val"])
                for output, microbatch in zip(outputs, batch.microbatches, strict=True)
            ]
            tally["val_accuracy"] = (sum(r for r, _ in pairs), sum(n for _, n in pairs))
            tally["test_accuracy"] = tally["accuracy"]
        return tally


class NodeClassification(_WithValidation):
    """Of a graph's nodes."""


class GraphClassification(_WithValidation):
    """Of graphs; an evaluation is of those to validate and to test."""


def _accuracy(output: Tensor, target: Tensor) -> tuple[float, float]:
    """How many labelled rows are right, and how many there are."""
    # Few of the nodes may be labelled: 60 of PubMed's 19,717 in training.
    rows = (target != IGNORED).nonzero().flatten()
    return float((output[rows].argmax(-1) == target[rows]).sum()), float(len(rows))
