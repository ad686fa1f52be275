"""The protocol of tasks: the loss that is differentiated, and the metrics that are reported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from gnnhpc.batches.batch import Batch, MicroBatch
from gnnhpc.records.schema import Phase

Tally = dict[str, tuple[float, float]]
"""A metric's sum and what it is divided by, both added over replicas."""
Targets = Mapping[str, Tensor]


class Task(Protocol):
    """What is learnt, from a micro-batch's outputs [rows, width] and its targets."""

    def summed_loss(self, outputs: Tensor, targets: Targets, split: Phase) -> Tensor:
        """The loss summed over the labelled rows of a split."""
        ...

    def labelled(self, targets: Targets, split: Phase) -> int:
        """The number of labelled rows of a split."""
        ...

    def metrics(self, phase: Phase) -> tuple[str, ...]:
        """Names of the reported metrics; `loss` is the first."""
        ...

    def tally(self, phase: Phase, outputs: Sequence[Tensor], batch: Batch) -> Tally:
        """The metrics of one replica's mini-batch; `outputs` are one a micro-batch."""
        ...


@dataclass(frozen=True)
class Loss:
    """The mean loss of a step over the labelled rows of all replicas.

    Replicas average their gradients, so a replica divides by its share of the global count:
    micro-batches and replicas of any size add up to the sequential gradient.
    """

    task: Task
    replicas: int

    def __call__(self, output: Tensor, microbatch: MicroBatch, labelled: int) -> Tensor:
        """One micro-batch's part; `labelled` is the batch's count over all replicas."""
        summed = self.task.summed_loss(output, microbatch.targets, "train")
        return summed / (labelled / self.replicas)
