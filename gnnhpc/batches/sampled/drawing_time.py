"""When mini-batches may be drawn in advance: while steps are timed, and else for nothing."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator


class DrawingTime:
    """Runs while steps are timed, and stands still between them.

    A draw that has begun cannot be stopped where steps end. What it does from there on is handed
    over as much later, so that steps wait for draws as long as they do where nothing lies between.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._going = threading.Event()
        self._going.set()
        self._since: float | None = time.perf_counter()
        self._before_s = 0.0

    @property
    def is_going(self) -> bool:
        return self._going.is_set()

    def stand_still(self) -> None:
        with self._lock:
            if self._since is not None:
                self._before_s += time.perf_counter() - self._since
            self._since = None
            self._going.clear()

    def go_on(self) -> None:
        with self._lock:
            if self._since is None:
                self._since = time.perf_counter()
            self._going.set()

    def seconds(self) -> float:
        """How long it has run."""
        with self._lock:
            running = 0.0 if self._since is None else time.perf_counter() - self._since
            return self._before_s + running

    @contextlib.contextmanager
    def draw(self) -> Iterator[None]:
        """Around a draw: begins while the time runs, and ends when it has run as long."""
        self._going.wait()
        before_s, began = self.seconds(), time.perf_counter()
        yield
        due_s = before_s + time.perf_counter() - began
        while (left_s := due_s - self.seconds()) > 0:
            self._going.wait()
            time.sleep(left_s)
