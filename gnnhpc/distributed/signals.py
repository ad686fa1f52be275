"""Signals, handled in a thread, so that a rank that waits in a collective still reacts to them.

Slurm sends USR2 ahead of a time limit (or USR1, as the site says), TERM when it ends a job. The
interpreter's own handlers run in the main thread, which may be waiting in C++. But the signal's
number is written to a file descriptor at once, whatever thread gets the signal, and a thread of
this file reads it there.
"""

from __future__ import annotations

import contextlib
import select
import signal
import socket
import threading
from collections.abc import Callable, Iterator

HANDLED = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT)
_EVERY_MS = 200
"""How often the thread sees whether it is to end."""
GRACE_S = 15.0
"""How long the loop may take to end its step after TERM or INT."""


class Signals:
    """Remembers the first signal; calls `on_timeout` if the loop does not end after TERM or INT.

    Replaces the handlers that a launcher has set; make it in the main thread.
    """

    def __init__(self, on_timeout: Callable[[str], None], grace_s: float) -> None:
        self.received: str | None = None
        self._on_timeout = on_timeout
        self._grace_s = grace_s
        self._finished = threading.Event()
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._lock = threading.Lock()
        """Held from what is read of the socket to what is remembered of it."""
        self._wakeup_before = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._handlers_before = {number: signal.signal(number, _do_nothing) for number in HANDLED}
        self._thread = threading.Thread(target=self._read_signals, name="signals", daemon=True)
        self._thread.start()

    def _read_signals(self) -> None:
        arrivals = select.poll()
        arrivals.register(self._reader, select.POLLIN)
        while not self._finished.is_set():
            arrivals.poll(_EVERY_MS)
            for name in self._come():
                if self._handle(name):
                    return

    def _come(self, flags: int = 0) -> list[str]:
        """The names of the signals that have come and were not read yet, of which one may be the
        first; `flags` are of `recv`."""
        with self._lock, contextlib.suppress(BlockingIOError):
            numbers = self._reader.recv(4096, flags)
            names = [signal.Signals(number).name for number in numbers if number in HANDLED]
            self.received = self.received or next(iter(names), None)
            return names
        return []

    def _handle(self, name: str) -> bool:
        """True after TERM or INT, when no later signal matters."""
        if name not in ("SIGTERM", "SIGINT"):
            return False
        if not self._finished.wait(self._grace_s):
            self._on_timeout(name)
        return True

    def stop_requested(self) -> bool:
        """Whether any signal has come, also if the thread had no processor since."""
        self._come(socket.MSG_PEEK)
        return self.received is not None

    def close(self) -> None:
        """End the thread and restore the handlers from before."""
        self._finished.set()
        self._thread.join()
        signal.set_wakeup_fd(self._wakeup_before)
        for number, handler in self._handlers_before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        self._reader.close()
        self._writer.close()


def _do_nothing(number: int, frame: object) -> None:
    """The handler: the thread remembers the signal, and the loop asks for it after each step."""


@contextlib.contextmanager
def handled_signals(on_timeout: Callable[[str], None]) -> Iterator[Signals]:
    """Handle signals for the time of a `with` block."""
    signals = Signals(on_timeout, GRACE_S)
    try:
        yield signals
    finally:
        signals.close()
