"""The clock of one rank's step: points in time of the CPU, or of the device's stream."""

from __future__ import annotations

import time

import torch

Mark = float | torch.cuda.Event


class Clock:
    """Marks points in time; on a GPU as events in the stream, so that a mark does not wait.

    An event takes the driver some microseconds to make and none to use again: those of a step are
    used again in the next, so a mark is good until `restart`.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.on_device = device.type == "cuda"
        self._events: list[torch.cuda.Event] = []
        self._used = 0
        """Events recorded since the last restart: the first so many."""
        self._used_before = 0
        """Events recorded in earlier steps."""
        self._end: torch.cuda.Event | None = None
        self.restart()

    def restart(self) -> None:
        """Set time zero; called at a step's first barrier, when the device is idle."""
        self._used_before += self._used
        self._used = 0
        self._base_s = time.perf_counter()
        self._base = self._record() if self.on_device else None

    def mark(self) -> Mark:
        return self._record() if self.on_device else time.perf_counter()

    def _record(self) -> torch.cuda.Event:
        if self._used == len(self._events):
            self._events.append(self._make_event(timed=True))
        event = self._events[self._used]
        event.record()
        self._used += 1
        return event

    @staticmethod
    def _make_event(*, timed: bool) -> torch.cuda.Event:
        return torch.cuda.Event(enable_timing=timed, blocking=not timed)

    def seconds(self, mark: Mark) -> float:
        """Seconds from the last restart to `mark`; a device mark must have been reached."""
        if isinstance(mark, float):
            return mark - self._base_s
        assert self._base is not None
        return float(self._base.elapsed_time(mark)) / 1e3

    def now_s(self) -> float:
        """Host seconds since the last restart."""
        return time.perf_counter() - self._base_s

    def synchronize(self) -> None:
        """Wait until the device has done all it was given."""
        if not self.on_device:
            return
        # Waiting for a blocking event the host sleeps. torch.cuda.synchronize alone may spin, and
        # the processor time of a spinning host looks like work.
        self._end = self._end or self._make_event(timed=False)
        self._end.record()
        self._end.synchronize()
        torch.cuda.synchronize(self.device)

    def marked(self) -> int:
        """How many device marks the host has made since the start."""
        return self._used_before + self._used

    def reached(self) -> int:
        """How many device marks the device has reached since the start.

        Marks are made in the order of one stream. May be called by another thread.
        """
        before, events = self._used_before, self._events[: self._used]
        passed = (number for number, event in enumerate(events) if not self.has_reached(event))
        return before + next(passed, len(events))

    def has_reached(self, mark: Mark) -> bool:
        """Whether the device has come to `mark`; a mark of the CPU is in the past."""
        if isinstance(mark, float):
            return True
        # A thread that has chosen no device would set up the first one for itself.
        with torch.cuda.device(self.device):
            return bool(mark.query())
