"""Seconds by the records' clock, and between which ones they lie by another clock."""

from __future__ import annotations

import time
from dataclasses import dataclass


def _seconds() -> float:
    """Of a clock that nothing adjusts."""
    return time.clock_gettime(time.CLOCK_MONOTONIC_RAW)


@dataclass(frozen=True)
class Timed:
    """One piece of work, by any thread."""

    seconds: float
    least_s: float
    """By the other clock, read within."""
    most_s: float
    """And read around it."""


class Stopwatch:
    """Runs from when it is made."""

    def __init__(self) -> None:
        self._before_s = _seconds()
        self._began = time.perf_counter()
        self._after_s = _seconds()

    def read(self) -> Timed:
        within_s = _seconds()
        now = time.perf_counter()
        return Timed(now - self._began, within_s - self._after_s, _seconds() - self._before_s)
