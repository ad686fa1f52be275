"""When a step's sum over replicas was waited for and was there, by a second clock."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import NamedTuple

from gnnhpc.check.watches.work_moments import Moment
from gnnhpc.distributed.mesh import OfSum
from gnnhpc.engines.system_counters import delay_in, read_schedstat


class SeenSums(NamedTuple):
    """Of one step, in which there may be several; moments since its first barrier."""

    waits: Moment | None
    """When this rank began to wait for the first; None where it waited for none."""
    ended: Moment | None
    """When it had the last; how long its thread had waited is None where another thread told."""
    nbytes: int
    """What it gave to all."""


@dataclass
class SumMoments:
    """Told by the mesh, which sums for whichever engine, by a clock that nothing adjusts."""

    _events: list[tuple[OfSum, float, bytes, int]] = field(default_factory=list)
    """What was seen, the clock and the schedstat of the thread, and which thread that was."""
    _nbytes: int = 0
    _in_step: bool = False
    _from_s: float = 0.0

    def begin_step(self, from_s: float) -> None:
        """`from_s` is the clock at the step's first barrier."""
        self._events, self._nbytes = [], 0
        self._in_step, self._from_s = True, from_s

    def end_step(self) -> None:
        """What is summed from here on, such as statistics, is no work of the step."""
        self._in_step = False

    def told(self, what: OfSum, nbytes: int) -> None:
        """Readings lie outside the wait, but for how long the thread had no processor."""
        if not self._in_step:
            return
        self._nbytes += nbytes
        if what == "waits":
            at_s = time.clock_gettime(time.CLOCK_MONOTONIC_RAW)
            schedstat = read_schedstat()
        elif what == "ends":
            schedstat = read_schedstat()
            at_s = time.clock_gettime(time.CLOCK_MONOTONIC_RAW)
        else:
            return
        self._events.append((what, at_s, schedstat, threading.get_ident()))

    def seen(self) -> SeenSums:
        """Of the step."""
        waits = [each for each in self._events if each[0] == "waits"]
        ends = [each for each in self._events if each[0] == "ends"]
        if not waits or not ends:
            return SeenSums(None, None, self._nbytes)
        (_, waits_s, before, thread), (_, ended_s, after, other) = waits[0], ends[-1]
        return SeenSums(
            Moment(waits_s - self._from_s, delay_in(before)),
            Moment(ended_s - self._from_s, delay_in(after) if other == thread else None),
            self._nbytes,
        )
