"""What is learnt and how it is measured: the loss, and classification of images, nodes and graphs.

Link prediction is in `gnnhpc.training.link_ranking`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor
from torch.nn import functional

from gnnhpc.batches.batch import Batch, MicroBatch
from gnnhpc.graphs.graph import IGNORED
from gnnhpc.models.model import Outputs
from gnnhpc.records.schema import Phase

MetricSums = dict[str, tuple[float, float]]
"""A metric's sum and what it is divided by, both added over replicas."""
Targets = Mapping[str, Tensor]


class Task(Protocol):
    """What is learnt, from a micro-batch's outputs [rows, width] and its targets."""

    def summed_loss(self, outputs: Tensor, targets: Targets, split: Phase) -> Tensor:
        """The loss summed over the valid targets of a split."""
        ...

    def valid_targets(self, targets: Targets, split: Phase) -> int:
        """How many targets of a split count."""
        ...

    def metrics(self, phase: Phase) -> tuple[str, ...]:
        """Names of the reported metrics; `loss` is the first."""
        ...

    def metric_sums(self, phase: Phase, outputs: Sequence[Tensor], batch: Batch) -> MetricSums:
        """The metrics of one replica's mini-batch; `outputs` has one tensor a micro-batch."""
        ...


@dataclass(frozen=True)
class MeanLoss:
    """The mean loss of a step over the valid targets of all replicas.

    Replicas average their gradients, so a replica divides by its share of the global count:
    micro-batches and replicas of any size add up to the sequential gradient.
    """

    task: Task
    replicas: int

    def __call__(self, output: Tensor, microbatch: MicroBatch, valid_targets: int) -> Tensor:
        """One micro-batch's part; `valid_targets` is the batch's count over all replicas."""
        summed = self.task.summed_loss(output, microbatch.targets, "train")
        return summed / (valid_targets / self.replicas)


@dataclass(frozen=True)
class Classification:
    """One class a row, by cross-entropy; rows whose target is `IGNORED` do not count."""

    outputs: Outputs
    """What the last layer gives."""
    splits: bool
    """Whether an evaluation has rows to validate and rows to test, as that of nodes and graphs; its
    `loss` and `accuracy` are then those of the test split."""

    def summed_loss(self, outputs: Tensor, targets: Targets, split: Phase) -> Tensor:
        target = targets[split]
        if self.outputs == "log_probabilities":
            return functional.nll_loss(outputs, target, reduction="sum", ignore_index=IGNORED)
        return functional.cross_entropy(outputs, target, reduction="sum", ignore_index=IGNORED)

    def valid_targets(self, targets: Targets, split: Phase) -> int:
        return int((targets[split] != IGNORED).sum())

    def metrics(self, phase: Phase) -> tuple[str, ...]:
        extra = ("val_accuracy", "test_accuracy") if self.splits and phase == "test" else ()
        return ("loss", "accuracy", *extra)

    def metric_sums(self, phase: Phase, outputs: Sequence[Tensor], batch: Batch) -> MetricSums:
        pairs = [(o, m.targets) for o, m in zip(outputs, batch.microbatches, strict=True)]
        loss = sum(float(self.summed_loss(output, targets, phase)) for output, targets in pairs)
        right, count = _accuracy(pairs, phase)
        sums: MetricSums = {"loss": (loss, count), "accuracy": (right, count)}
        if self.splits and phase == "test":
            sums["val_accuracy"] = _accuracy(pairs, "val")
            sums["test_accuracy"] = sums["accuracy"]
        return sums


def _accuracy(pairs: Sequence[tuple[Tensor, Targets]], split: str) -> tuple[float, float]:
    """How many rows with a valid target are right, and how many there are."""
    right = count = 0.0
    for output, targets in pairs:
        target = targets[split]
        # Few of the nodes may have one: 60 of PubMed's 19,717 in training.
        rows = (target != IGNORED).nonzero().flatten()
        right += float((output[rows].argmax(-1) == target[rows]).sum())
        count += len(rows)
    return right, count
