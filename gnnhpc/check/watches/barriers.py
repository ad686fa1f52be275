"""Holds each step's barriers to what a barrier is: no rank leaves one before all have come to it.

Each rank reads a clock when it comes to a barrier and when it has left it. Ranks of one running
system read the same clock (CLOCK_MONOTONIC_RAW), so the readings are compared as they are. Clocks
of two systems differ by what nobody knows, but by the same in all barriers of a short while: some
difference must let neither rank leave any of them before the other has come.
"""

from __future__ import annotations

import hashlib
import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from gnnhpc.check.watches.faults import Faults
from gnnhpc.engines.system_counters import running_system
from gnnhpc.train.step_observer import BARRIER_VALUES

TIME_NAMESPACE = Path("/proc/self/ns/time")
OF_STEP, OF_DRAWING = 4, 4
"""Readings: coming to a step's first barrier and leaving it, and so its last; and before these the
same of the two that its batch is drawn between."""
WINDOW_S: Final = 0.5
"""How long clocks of two systems are taken to differ by the same, but for their rates."""
RATE: Final = 1e-3
"""Relative difference of two systems' clocks' rates: each is right to 500 ppm (adjtimex(2))."""

Readings = np.ndarray[Any, np.dtype[np.float64]]


def clock_number() -> float:
    """Equal for processes that read the same clock; not a number where that cannot be told."""
    system = running_system()
    if system is None:
        return math.nan
    try:
        # A namespace's clock is shifted (time_namespaces(7)).
        namespace = str(TIME_NAMESPACE.readlink())
    except FileNotFoundError:
        # Kernels before 5.6 have none.
        namespace = ""
    except OSError:
        return math.nan
    digest = hashlib.sha256(f"{system} {namespace}".encode()).digest()
    return float(int.from_bytes(digest[:6], "big"))


@dataclass
class _Window:
    """Of the ranks of other systems: by how much each one's clock may be ahead of this one's."""

    since_s: float
    least: Readings
    most: Readings


@dataclass
class Barriers:
    """Of one rank, step after step; two readings a barrier, and nothing sent within a step."""

    rank: int
    faults: Faults
    drawn: bool = False
    """Whether batches are drawn within what is timed, between barriers of their own."""
    clock: float = field(default_factory=clock_number)
    _readings: list[float] = field(default_factory=list)
    """Of the present step."""
    _window: _Window | None = None

    def begin_step(self) -> None:
        self._readings = []

    def come(self) -> None:
        self._readings.append(time.clock_gettime(time.CLOCK_MONOTONIC_RAW))

    def leave(self) -> None:
        self._readings.append(time.clock_gettime(time.CLOCK_MONOTONIC_RAW))

    def values(self) -> list[float]:
        """Of the step that has ended: which clock, and its readings; no numbers for what was not
        read."""
        readings = self._readings if len(self._readings) == self._wanted else []
        missing = BARRIER_VALUES - 1 - len(readings)
        return [self.clock, *[math.nan] * missing, *readings]

    @property
    def _wanted(self) -> int:
        return OF_STEP + (OF_DRAWING if self.drawn else 0)

    def compare(self, everyone: Readings, where: str) -> None:
        """`everyone` has each rank's values, by rank, of one step."""
        if len(everyone) == 1:
            return
        readings = everyone[:, -self._wanted :]
        came, left = readings[:, ::2], readings[:, 1::2]
        if np.isnan(came).any():
            # A rank that has not read them tells so itself.
            if np.isnan(came[self.rank]).any():
                self.faults.add("barriers that were not looked at", where)
            return
        same = everyone[:, 0] == self.clock
        early = np.where(same[:, None], came - left[self.rank], -math.inf).max(axis=1)
        late = int(early.argmax())
        if early[late] > 0:
            self.faults.add(
                "left a barrier before another rank had come to it",
                f"{where}: {early[late]:.6f} s before rank {late}",
            )
        others = np.flatnonzero(~same)
        # One of two ranks tells of both.
        if len(others := others[others > self.rank]):
            self._compare_clocks(came, left, others, where)

    def _compare_clocks(
        self, came: Readings, left: Readings, others: np.ndarray[Any, Any], where: str
    ) -> None:
        """Another rank's clock is ahead by as much as it came before this one left, or by more, and
        by as much as it left after this one came, or by less."""
        mine = self.rank
        least = (came[others] - left[mine]).max(axis=1)
        most = (left[others] - came[mine]).min(axis=1)
        window, now_s = self._window, float(left[mine, -1])
        if window is None or now_s - window.since_s > WINDOW_S:
            window = self._window = _Window(float(came[mine, 0]), least, most)
        window.least = np.maximum(window.least, least)
        window.most = np.minimum(window.most, most)
        apart = window.least - window.most - RATE * (now_s - window.since_s)
        worst = int(apart.argmax())
        if apart[worst] > 0:
            self.faults.add(
                "a barrier that one of two ranks left before the other had come to it",
                f"{where}: this one and rank {others[worst]}, by {apart[worst]:.6f} s or more",
            )
