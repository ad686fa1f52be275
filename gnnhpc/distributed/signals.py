"""Signals, handled in a thread, so that a rank that waits in a collective still reacts to them.

Slurm sends USR2 ahead of a time limit (or USR1, as the site says), TERM when it ends a job. The
interpreter's handlers run in the main thread, which may be waiting in C++; but the signal's number
is written to a file descriptor at once.
"""

from __future__ import annotations

import select
import signal
import socket
import threading
from collections.abc import Callable

HANDLED = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT)
_EVERY_MS = 200
"""How often the thread sees whether it is to end."""


class Signals:
    """Remembers the first signal; calls `on_timeout` if the loop does not end its step within
    `grace_s` seconds of TERM or INT.

    Replaces the handlers that a launcher has set; make it in the main thread, and close it.
    """

    def __init__(self, on_timeout: Callable[[str], None], grace_s: float = 15.0) -> None:
        self.received: str | None = None
        self._on_timeout = on_timeout
        self._grace_s = grace_s
        self._finished = threading.Event()
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._wakeup_before = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._handlers_before = {
            number: signal.signal(number, self._remember) for number in HANDLED
        }
        self._thread = threading.Thread(target=self._wait_for_end, name="signals", daemon=True)
        self._thread.start()

    def _remember(self, number: int, frame: object) -> None:
        """Runs in the main thread, where the loop asks after each step."""
        self.received = self.received or signal.Signals(number).name

    def _wait_for_end(self) -> None:
        arrivals = select.poll()
        arrivals.register(self._reader, select.POLLIN)
        while not self._finished.is_set():
            numbers = self._reader.recv(4096) if arrivals.poll(_EVERY_MS) else b""
            for number in numbers:
                if number in (signal.SIGTERM, signal.SIGINT):
                    if not self._finished.wait(self._grace_s):
                        self._on_timeout(signal.Signals(number).name)
                    return

    def close(self) -> None:
        """End the thread and restore the handlers from before."""
        self._finished.set()
        self._thread.join()
        signal.set_wakeup_fd(self._wakeup_before)
        for number, handler in self._handlers_before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        self._reader.close()
        self._writer.close()
