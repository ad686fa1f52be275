"""Watches who used the CPUs of a rank: this process, or everybody.

A thread that waits for a processor says nothing of who has it: another user's process, which is
noise, or this job's own threads that transfer and load, which belong to what is measured.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Set
from dataclasses import dataclass

from gnnhpc.engines import system_counters


@dataclass(frozen=True)
class ProcessorUse:
    """Between the ends of a run's first and last step, all in seconds."""

    seconds: float
    by_anybody_s: float
    """Processor time used on the CPUs that this process may use."""
    by_process_s: float
    """Processor time of this process."""
    resolution_s: float
    """How far the first of these may be off: clock ticks are whole ones."""


@dataclass
class ProcessorUseWatch:
    """Looked at after each step, when all ranks have just left its last barrier."""

    _first: tuple[float, float, float] | None = None
    _last: tuple[float, float, float] | None = None

    def look(self) -> None:
        unused = unused_s(os.sched_getaffinity(0))
        if unused is None:
            return
        self._last = time.perf_counter(), unused, time.process_time()
        self._first = self._first or self._last

    def seen(self) -> ProcessorUse | None:
        """None for fewer than two steps, or where the system does not say."""
        if self._first is None or self._last is None or self._first is self._last:
            return None
        seconds, unused, process = (
            last - first for first, last in zip(self._first, self._last, strict=True)
        )
        cpus = len(os.sched_getaffinity(0))
        resolution = 2 * cpus / os.sysconf("SC_CLK_TCK")
        return ProcessorUse(seconds, cpus * seconds - unused, process, resolution)


def unused_s(cpus: Set[int]) -> float | None:
    """Seconds since boot in which no process ran on these CPUs, in sum: idle, waiting for storage,
    serving interrupts, or taken by the host; None if the system does not say.

    Fields 4 to 8 of each CPU's line, in clock ticks (proc(5)). Idle time is measured, other fields
    may be sampled; so what was used is taken for the rest.
    """
    allowed = {f"cpu{number}" for number in cpus}
    try:
        with system_counters.STAT.open(encoding="ascii") as stream:
            lines = itertools.takewhile(lambda line: line.startswith("cpu"), stream)
            ticks = [
                sum(map(int, fields[4:9]))
                for fields in map(str.split, lines)
                if fields[0] in allowed
            ]
    except (OSError, ValueError):
        return None
    return sum(ticks) / os.sysconf("SC_CLK_TCK") if len(ticks) == len(cpus) else None
