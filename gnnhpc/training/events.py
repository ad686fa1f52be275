"""What the training loop reports to its listeners, outside of timed steps, and to validation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gnnhpc.batches.batch import Batch
from gnnhpc.core.errors import GnnhpcError
from gnnhpc.core.run_paths import AttemptPaths
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.engines.engine import StepOutput
from gnnhpc.engines.step_timer import Span
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.records.result_file import Result
from gnnhpc.records.schema import Check, EventRecord, Phase, StepRecord
from gnnhpc.training.setup import TrainingParts
from gnnhpc.training.step_record import StepMetrics


@dataclass(frozen=True)
class StepTaken:
    """A step that has ended on all ranks, and its record."""

    phase: Phase
    step: int
    batch: Batch
    output: StepOutput
    record: StepRecord
    spans: Sequence[Span]
    metrics: StepMetrics
    """Metrics over all ranks; the record has the loss on the ranks that compute it."""


class Listener:
    """A listener of the loop; its methods do nothing, and each kind overrides what it needs."""

    def training_begins(self, start: int) -> None:
        """Called before the first step, which is training step `start`."""

    def step_taken(self, taken: StepTaken) -> None:
        """Called after a training or test step, before its batch is overwritten."""

    def evaluation_begins(self) -> None:
        """Called in evaluation mode, once replicas have averaged their running statistics."""

    def evaluation_ended(self) -> None:
        """Called in evaluation mode, after the last test step."""

    def training_ended(self, step: int) -> None:
        """Called after the last step; `step` is the next one."""


class Validator(Protocol):
    """Validates one attempt at its boundaries, on all its ranks (`gnnhpc.validation.boundary`)."""

    @property
    def seconds(self) -> float:
        """What validation has taken on this rank."""

    @property
    def listeners(self) -> list[Listener]:
        """What follows the run between its boundaries."""

    def at_start(self, start: int) -> None:
        """Called before training step `start`, the first; a collective. Raises WrongRunError."""

    def at_checkpoint(self, step: int) -> list[Check]:
        """Called before a checkpoint is written; a collective. Raises WrongRunError."""

    def at_end(self, step: int) -> list[Check]:
        """Called after the last step, the one before `step`; a collective."""

    def events(self) -> list[EventRecord]:
        """What each rank records after the last step."""

    def audit(self, paths: AttemptPaths, result: Result) -> list[Check]:
        """What the attempt's files show; on rank 0."""


MakeValidator = Callable[[Experiment, TrainingParts, Mesh, Path | None], Validator]


class WrongRunError(GnnhpcError):
    """The run is wrong and ends. Its result has `check`, whose detail is a part of the message."""

    def __init__(self, before: str, check: Check) -> None:
        super().__init__(f"{before}: {check.detail}")
        self.check = check
