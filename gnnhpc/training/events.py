"""What the training loop reports to its listeners, always outside of timed steps."""

from __future__ import annotations

from dataclasses import dataclass

from gnnhpc.batches.batch import Batch
from gnnhpc.engines.engine import StepOutput
from gnnhpc.engines.step_timer import Span
from gnnhpc.records.schema import Phase, StepRecord


@dataclass(frozen=True)
class StepTaken:
    """A step that has ended on all ranks, and its record."""

    phase: Phase
    step: int
    batch: Batch
    output: StepOutput
    record: StepRecord
    spans: list[Span]


class Listener:
    """A listener of the loop; its methods do nothing, and each kind overrides what it needs."""

    def training_begins(self, start: int) -> None:
        """Before the first step, which is training step `start`."""

    def step_taken(self, taken: StepTaken) -> None:
        """After a training or test step, before its batch is overwritten."""

    def evaluation_begins(self) -> None:
        """In evaluation mode, once replicas have averaged their running statistics."""

    def evaluation_ended(self) -> None:
        """In evaluation mode, after the last test step."""

    def training_ended(self, step: int) -> None:
        """After the last step; `step` is the next one that would be taken."""
