"""Signals, heard by a thread, so that a rank stuck in a collective still answers them.

Slurm sends USR2 ahead of a time limit (or USR1, as the site says), TERM when it ends a job. The
interpreter's own handler runs in the main thread, which may be waiting in C++; but it first writes
the signal's number to a file descriptor, whichever thread the system picked, and that is what is
listened to here.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from collections.abc import Callable, Iterator

TAKEN = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT)
GRACE_S = 15.0
"""How long after TERM or INT the loop is given to reach the end of its step."""


class Signals:
    """Remembers the first signal; `deadline` is called if a TERM or INT goes unheeded.

    Replaces whatever handlers a launcher has put there; to be made in the main thread.
    """

    def __init__(self, deadline: Callable[[str], None], grace_s: float) -> None:
        self.received: str | None = None
        self._deadline = deadline
        self._grace_s = grace_s
        self._finished = threading.Event()
        self._ear, self._mouth = socket.socketpair()
        self._ear.settimeout(0.2)
        self._mouth.setblocking(False)
        self._wakeup_before = signal.set_wakeup_fd(self._mouth.fileno(), warn_on_full_buffer=False)
        self._before = {number: signal.signal(number, _nothing) for number in TAKEN}
        self._thread = threading.Thread(target=self._listen, name="signals", daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while not self._finished.is_set():
            with contextlib.suppress(TimeoutError):
                for number in self._ear.recv(64):
                    if number in TAKEN and self._heed(signal.Signals(number).name):
                        return

    def _heed(self, name: str) -> bool:
        """True once there is nothing more to listen for."""
        self.received = self.received or name
        if name not in ("SIGTERM", "SIGINT"):
            return False
        if not self._finished.wait(self._grace_s):
            self._deadline(name)
        return True

    def asked(self) -> bool:
        return self.received is not None

    def close(self) -> None:
        """Stop listening and let the process's own handling back in."""
        self._finished.set()
        self._thread.join()
        signal.set_wakeup_fd(self._wakeup_before)
        for number, handler in self._before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        self._ear.close()
        self._mouth.close()


def _nothing(number: int, frame: object) -> None:
    """The handler: hearing is enough, the loop looks at the end of its step."""


@contextlib.contextmanager
def listening(deadline: Callable[[str], None]) -> Iterator[Signals]:
    signals = Signals(deadline, GRACE_S)
    try:
        yield signals
    finally:
        signals.close()
