"""The processes of a library's loader, which stand still while what their rank does is not timed.

They would else draw for nothing between the steps, and a step would wait for less than it costs.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from typing import Any


class WorkerProcesses:
    """Of the loader that runs, if one does."""

    def __init__(self) -> None:
        self._ids: list[int] = []

    @contextlib.contextmanager
    def of(self, batches: Any) -> Iterator[None]:
        """Those of an iterator of torch's loader, or of DGL's around one; they go on afterwards."""
        inner = getattr(batches, "dataloader_it", batches)
        self._ids = [worker.pid for worker in getattr(inner, "_workers", ())]
        try:
            yield
        finally:
            self.go_on()
            self._ids = []

    def stand_still(self) -> None:
        self._tell(signal.SIGSTOP)

    def go_on(self) -> None:
        self._tell(signal.SIGCONT)

    def _tell(self, what: signal.Signals) -> None:
        for number in self._ids:
            # Of one that has died the loader speaks.
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, what)
