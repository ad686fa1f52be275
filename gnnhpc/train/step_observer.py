"""What the training loop tells an observer; `gnnhpc.check.observer` has the one it uses."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Protocol

from gnnhpc.batches.batch import Batch
from gnnhpc.engines.timing import StepTimes
from gnnhpc.records.schema import StepRecord


class StepObserver(Protocol):
    """Called for each step after its last barrier, outside the measured time."""

    grad_norm: float | None
    """Of this stage's last gradient."""

    def observing(self) -> contextlib.AbstractContextManager[None]:
        """Measures the time that observing takes: around all calls of the methods below."""
        ...

    def observe_gradients(self, batch: Batch, grad_norm: float | None) -> None:
        """The samples of a training step, and the norm of its gradient."""
        ...

    def compare_ranks(self, checksums: Sequence[float], norms: Sequence[float] | None) -> None:
        """Values by rank that must be equal between certain ranks: batches, gradient norms."""
        ...

    def compare_losses(self, differentiated: float, reported: float) -> None:
        """The loss that was differentiated and the one that is reported, which must be equal."""
        ...

    def observe_times(self, record: StepRecord, times: StepTimes) -> None:
        """The record and the times of a step."""
        ...
