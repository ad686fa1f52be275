"""What the training loop tells an observer; `gnnhpc.check.observer` has the one it uses."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Final, Protocol

from torch import Tensor

from gnnhpc.batches.batch import Batch
from gnnhpc.batches.stopwatch import Timed
from gnnhpc.engines.base import StepOutput
from gnnhpc.engines.timing import StepTimes
from gnnhpc.records.schema import Phase, StepRecord
from gnnhpc.tasks.task import Tally

BARRIER_VALUES: Final = 9
"""That a rank tells the others of a step's barriers."""


class StepObserver(Protocol):
    """Called before and after each step, and at its barriers."""

    grad_norm: float | None
    """Of this stage's last gradient."""

    @property
    def over_budget(self) -> bool:
        """Whether this rank has spent too much on looking closely at steps."""
        ...

    def agree_on_budget(self, *, over: bool) -> None:
        """Whether any rank has: all choose alike which steps they look at."""
        ...

    def observing(self) -> contextlib.AbstractContextManager[None]:
        """Measures the time that observing takes: around all calls of the methods below."""
        ...

    def before_reading(self) -> None:
        """Before all barriers of a step: those around drawing its batch, where that is drawn, and
        its own two."""
        ...

    def batch_taken(self, taken: Timed) -> None:
        """How long taking the next batch took, and between which seconds by another clock."""
        ...

    def before_training_step(self, step: int, batch: Batch) -> None:
        """Before the first barrier of a step, its batch at hand."""
        ...

    def after_training_step(self, step: int, batch: Batch, trained: StepOutput) -> None:
        """After its last barrier, the batch not yet overwritten."""
        ...

    def before_evaluation(self, step: int) -> None:
        """Before replicas average their statistics; `step` is the next of the test phase."""
        ...

    def after_averaging(self) -> None:
        """Once all is as the evaluation will use it."""
        ...

    def before_test_step(self, step: int, batch: Batch) -> None:
        """As `before_training_step`, of the test phase."""
        ...

    def after_test_step(self, step: int, batch: Batch, outputs: Sequence[Tensor]) -> None:
        """As `after_training_step`; `outputs` are one a micro-batch, on the stage of the loss."""
        ...

    def after_evaluation(self) -> None:
        """Before training goes on."""
        ...

    def observe_tally(
        self, phase: Phase, batch: Batch, outputs: Sequence[Tensor], tally: Tally
    ) -> None:
        """What the stage of the loss is about to report of a step."""
        ...

    def before_checkpoint(self, step: int) -> None:
        """Before training step `step`, and before an audit of the steps until then."""
        ...

    def before_step(self, storage_cpu_s: float) -> None:
        """Before a step is prepared; `storage_cpu_s` of processor time went into files so far."""
        ...

    def comes(self) -> None:
        """Just before each of these barriers; takes a reading of a clock."""
        ...

    def leaves(self) -> None:
        """Just after each of them, likewise."""
        ...

    def step_began(self) -> None:
        """After the first barrier and the start of the timer; takes readings of clocks."""
        ...

    def step_ended(self) -> None:
        """After the last barrier, before the timer is stopped; takes readings of clocks."""
        ...

    def length_read(self) -> None:
        """Just after the timer has read the step's length; takes a reading of a clock."""
        ...

    def step_stopped(self) -> None:
        """After the timer was stopped; takes readings of clocks."""
        ...

    def observe_gradients(self, batch: Batch, grad_norm: float | None) -> None:
        """The samples of a training step, and the norm of its gradient."""
        ...

    def compare_ranks(self, checksums: Sequence[float], norms: Sequence[float] | None) -> None:
        """Values by rank that must be equal between certain ranks: batches, gradient norms."""
        ...

    def barrier_values(self) -> Sequence[float]:
        """`BARRIER_VALUES` numbers of the barriers of the step that has ended, for other ranks."""
        ...

    def compare_barriers(self, everyone: Tensor, phase: Phase, step: int) -> None:
        """`everyone` has each rank's `barrier_values`, by rank."""
        ...

    def compare_losses(self, differentiated: float, reported: float) -> None:
        """The loss that was differentiated and the one that is reported, which must be equal."""
        ...

    @property
    def looks(self) -> bool:
        """Whether the present step is looked at within it, which takes some time."""
        ...

    def observe_times(self, record: StepRecord, times: StepTimes) -> None:
        """The record and the times of a step."""
        ...
