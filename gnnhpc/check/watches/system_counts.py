"""What the system counted of a rank in each step, read beside the timer's own readings.

Read in other ways than the timer's, where there are any, at moments that nest around its own:
before it is made ready, after it was started, before it is stopped, and after. So bounds hold
however busy the machine is.
"""

from __future__ import annotations

import os
import resource
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

TASKS = Path("/proc/self/task")
STAT = Path("/proc/stat")


class Counts(NamedTuple):
    """Of this process, or its engine's thread, since they began; or between two moments."""

    thread_cpu_s: float
    """Processor time of the engine's thread."""
    process_cpu_s: float
    """And of all threads."""
    switches: int
    """How often a thread of this process had to leave its processor."""
    delay_s: float | None
    """How long the engine's thread could have run and had no processor; None where the system does
    not say."""


@dataclass(frozen=True)
class CountedStep:
    """One step's."""

    least: Counts
    """From just after the timer was started to just before it was stopped."""
    most: Counts
    """From before it was made ready to after it was stopped."""
    delays: tuple[float, float] | None
    """The engine's thread's `delay_s` since it began, at the ends of `most`."""
    steal_s: float | None
    """Taken by the host from a CPU this process may use, on average over those, in `most`; None
    where the system does not say."""
    reading_share: float = 0.0
    """Of that time, in which `steal_s` itself was read: on many CPUs that takes a millisecond."""


class _Reading(NamedTuple):
    thread_cpu_s: float
    process_cpu_s: float
    switches: int
    schedstat: bytes


@dataclass
class SystemCounts:
    """Told of each step's moments by the engine's thread; a reading takes five microseconds."""

    _schedstat: int | None = None
    """The descriptor of the engine's thread's own file; -1 if there is none."""
    _readings: list[_Reading] = field(default_factory=list)
    """Of the present step."""
    _steal_s: list[float | None] = field(default_factory=list)
    """At its beginning and its end."""
    _steal_read: list[tuple[float, float]] = field(default_factory=list)
    """When each of them was begun and ended to be read."""

    def before_step(self) -> None:
        self._readings = [self._read()]
        self._steal_s, self._steal_read = [], []
        self._read_steal()

    def step_began(self) -> None:
        self._readings.append(self._read())

    def step_ended(self) -> None:
        self._readings.append(self._read())

    def step_stopped(self) -> None:
        self._readings.append(self._read())
        self._read_steal()

    def seen(self) -> CountedStep | None:
        """The step that was stopped; None before the first."""
        if not self._readings:
            return None
        before, began, ended, stopped = map(_counts, self._readings)
        known = before.delay_s is not None and stopped.delay_s is not None
        first, last = self._steal_s
        return CountedStep(
            least=_between(began, ended),
            most=_between(before, stopped),
            delays=(before.delay_s or 0.0, stopped.delay_s or 0.0) if known else None,
            steal_s=None if first is None or last is None else max(0.0, last - first),
            reading_share=self._reading_share(),
        )

    def _read_steal(self) -> None:
        began = time.perf_counter()
        self._steal_s.append(stolen_s())
        self._steal_read.append((began, time.perf_counter()))

    def _reading_share(self) -> float:
        """Of the time between the ends of both readings; the timer's own took as long as these."""
        (_, since), (_, until) = self._steal_read
        reading_s = sum(ended - began for began, ended in self._steal_read)
        return min(1.0, reading_s / (until - since))

    def _read(self) -> _Reading:
        if self._schedstat is None:
            self._schedstat = _open_schedstat()
        try:
            schedstat = os.pread(self._schedstat, 64, 0)
        except OSError:
            schedstat = b""
        switches = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
        return _Reading(time.thread_time(), time.process_time(), switches, schedstat)


def stolen_s() -> float | None:
    """Seconds since boot that the host has taken from a CPU this process may use, on average over
    those; None where the system does not say.

    `steal` of each CPU's line, in clock ticks (proc(5)).
    """
    names = [f"cpu{number}".encode() for number in os.sched_getaffinity(0)]
    try:
        lines = STAT.read_bytes().split(b"\n")
        ticks = {name: fields for name, *fields in map(bytes.split, filter(None, lines))}
        steal = [int(ticks[name][7]) for name in names]
    except (OSError, IndexError, KeyError, ValueError):
        return None
    return sum(steal) / len(steal) / os.sysconf("SC_CLK_TCK")


def _open_schedstat() -> int:
    """Stays open as long as this process: a rank has one engine."""
    try:
        return os.open(TASKS / str(threading.get_native_id()) / "schedstat", os.O_RDONLY)
    except OSError:
        return -1


def _counts(reading: _Reading) -> Counts:
    thread_cpu_s, process_cpu_s, switches, schedstat = reading
    # Nanoseconds on a processor, those waiting for one, and how often it was given one.
    numbers = schedstat.split()
    delay_s = int(numbers[1]) / 1e9 if len(numbers) == 3 else None
    return Counts(thread_cpu_s, process_cpu_s, switches, delay_s)


def _between(first: Counts, last: Counts) -> Counts:
    known = first.delay_s is not None and last.delay_s is not None
    return Counts(
        last.thread_cpu_s - first.thread_cpu_s,
        last.process_cpu_s - first.process_cpu_s,
        last.switches - first.switches,
        (last.delay_s or 0.0) - (first.delay_s or 0.0) if known else None,
    )
