"""Signals, taken by one thread, so that a rank stuck in a collective still hears them.

Slurm sends USR2 ahead of a time limit (or USR1, as the site says), TERM when it ends a job.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator

TAKEN = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT)
GRACE_S = 15.0
"""How long after TERM or INT the loop is given to reach the end of its step."""


class Signals:
    """Remembers the first signal; `deadline` is called if a TERM or INT goes unheeded.

    Blocks the signals in this thread and all it starts later, so make it before any of them.
    """

    def __init__(self, deadline: Callable[[str], None], grace_s: float = GRACE_S) -> None:
        self.received: str | None = None
        self._deadline = deadline
        self._grace_s = grace_s
        self._finished = threading.Event()
        self._before = signal.pthread_sigmask(signal.SIG_BLOCK, TAKEN)
        self._thread = threading.Thread(target=self._listen, name="signals", daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while not self._finished.is_set():
            info = signal.sigtimedwait(TAKEN, 0.2)
            if info is None:
                continue
            name = signal.Signals(info.si_signo).name
            self.received = self.received or name
            if name in ("SIGTERM", "SIGINT"):
                if not self._finished.wait(self._grace_s):
                    self._deadline(name)
                return

    def asked(self) -> bool:
        return self.received is not None

    def close(self) -> None:
        """Stop listening and let the process's own handling back in."""
        self._finished.set()
        self._thread.join()
        signal.pthread_sigmask(signal.SIG_SETMASK, self._before)


@contextlib.contextmanager
def listening(deadline: Callable[[str], None]) -> Iterator[Signals]:
    signals = Signals(deadline)
    try:
        yield signals
    finally:
        signals.close()
