"""Watches who used the CPUs of a rank: this process, or everybody.

A thread that waits for a processor says nothing of who has it: another user's process, which is
noise, or this job's own threads and processes that transfer and load, which belong to what is
measured.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import resource
import time
from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path

from gnnhpc.engines import system_counters

CHILDREN = Path("/proc/thread-self/children")


@dataclass(frozen=True)
class ProcessorUse:
    """Between the ends of a run's first and last step, all in seconds."""

    seconds: float
    by_anybody_s: float
    """Processor time used on the CPUs that this process may use."""
    by_process_s: float
    """Processor time of this process, and of those that it has started to load its data."""
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
        self._last = time.perf_counter(), unused, used_s()
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


def used_s() -> float:
    """Processor seconds of this process and of those that the calling thread has started, which
    run (proc(5)) or have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = time.process_time() + ended.ru_utime + ended.ru_stime
    with contextlib.suppress(OSError, ValueError):
        for number in map(int, CHILDREN.read_text(encoding="ascii").split()):
            with contextlib.suppress(OSError):
                found += time.clock_gettime(_cpu_clock(number))
    return found


def _cpu_clock(process: int) -> int:
    """The number of a process's processor clock, as MAKE_PROCESS_CPUCLOCK in Linux's headers."""
    return ~process << 3 | 2


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
