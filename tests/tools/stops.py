"""Plants that stop a run on its way, in a file that loads nothing else into its ranks."""

from __future__ import annotations

import os
import signal
from typing import Any


def stop_after_four_steps() -> None:
    """Send this rank the signal of a time limit in its fifth training step."""
    from gnnhpc.training.loop import TrainingLoop

    true = TrainingLoop._train

    def stopping(self: TrainingLoop, batch: Any) -> Any:
        if self.position.step == 4:
            os.kill(os.getpid(), signal.SIGUSR1)
        return true(self, batch)

    TrainingLoop._train = stopping  # type: ignore[method-assign]
