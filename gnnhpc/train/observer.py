"""Who looks on while steps are taken, as the loop knows them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Protocol

from gnnhpc.batches.batch import Batch
from gnnhpc.engines.timing import StepTimes
from gnnhpc.records.schema import StepRecord


class StepObserver(Protocol):
    """Told of each step after its last barrier, outside the timed region."""

    grad_norm: float | None
    """Of this stage's last gradient."""

    def looking(self) -> contextlib.AbstractContextManager[None]:
        """Around whatever is done to observe a step and not to take it."""
        ...

    def saw(self, batch: Batch, grad_norm: float | None) -> None:
        """Which samples a training step took, and how long its gradient is."""
        ...

    def compare(self, checksums: Sequence[float], norms: Sequence[float] | None) -> None:
        """What should be equal over ranks, by rank."""
        ...

    def trained(self, differentiated: float, reported: float) -> None:
        """The loss that was differentiated, and the one that was reported."""
        ...

    def timed(self, record: StepRecord, times: StepTimes) -> None:
        """What was recorded of the step."""
        ...
