"""The clock of one rank's step: points in time of the CPU, or of the device's stream."""

from __future__ import annotations

import time

import torch

Mark = float | torch.cuda.Event


class Clock:
    """Marks points in time; on a GPU as events in the stream, so that a mark does not wait."""

    def __init__(self, device: torch.device) -> None:
        self.on_device = device.type == "cuda"
        self._base_s = time.perf_counter()
        self._base = self._event() if self.on_device else None

    @staticmethod
    def _event() -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def restart(self) -> None:
        """Set time zero; called at a step's first barrier, when the device is idle."""
        self._base_s = time.perf_counter()
        self._base = self._event() if self.on_device else None

    def mark(self) -> Mark:
        return self._event() if self.on_device else time.perf_counter()

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
        if self.on_device:
            torch.cuda.synchronize()
