"""The threads of this process that compute a step, told apart from those of gloo and of loaders.

They are the thread that runs the engine and OpenMP's workers. Processor time is read by the
kernel's clock of each thread (clock_getres(3), pthread_getcpuclockid(3)), so that what transfers
and loading use is not taken for computing.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

TASKS = Path("/proc/self/task")
_USED_SHARE = 0.01
"""Of the engine's thread's processor time, from which on a worker counts as having computed."""


@dataclass
class ThreadUse:
    """What the computing threads did between two looks at them."""

    used: int
    """How many of them computed."""
    run_delay_s: float | None
    """How long, on average over these, they could have run and had no processor."""
    cpus: dict[int, frozenset[int]] = field(default_factory=dict)
    """Which CPUs each of them may use, by thread."""


@dataclass
class _Thread:
    id: int
    schedstat: BinaryIO | None
    cpu_s: float = 0.0
    cpu_before_s: float = 0.0
    delay_before_s: float | None = 0.0

    def __post_init__(self) -> None:
        self.clock = ~self.id << 3 | 6
        """The number of its processor clock, as MAKE_THREAD_CPUCLOCK in Linux's headers."""

    @classmethod
    def find(cls, number: int) -> _Thread:
        schedstat = None
        with contextlib.suppress(OSError):
            # Not closed before the thread's last step; unbuffered, so that each read is a new one.
            schedstat = (TASKS / str(number) / "schedstat").open("rb", buffering=0)
        return cls(number, schedstat)

    def read_cpu(self) -> float:
        """Its processor seconds; those last read of a thread that has ended."""
        # Not contextlib.suppress, which takes longer than the clock.
        try:
            self.cpu_s = time.clock_gettime(self.clock)
        except OSError:
            return self.cpu_s
        return self.cpu_s

    def read_delay(self) -> float | None:
        """Seconds it has waited for a processor: the second number of its schedstat."""
        if self.schedstat is None:
            return None
        try:
            self.schedstat.seek(0)
            return int(self.schedstat.read().split()[1]) / 1e9
        except (OSError, IndexError, ValueError):
            return None

    def delay_since_look(self) -> float | None:
        """Since it began, of a thread that began after the look."""
        before, now = self.delay_before_s, self.read_delay()
        return None if before is None or now is None else now - before


@dataclass
class ComputeThreads:
    """Found anew before each step: OpenMP's workers begin with the first parallel loop."""

    come_and_go: bool = False
    """Whether threads begin within a step, compute and end there, as torchgpipe's do: then what
    this process used is counted, less what its other threads did, and each of them says `visit`."""
    _visits: list[ThreadUse] = field(default_factory=list)
    """Of such threads since the last look, one a time that they computed."""
    _visitors: set[int] = field(default_factory=set)
    """Threads that have visited, and their workers: one may end only after the next look."""
    _others: list[_Thread] = field(default_factory=list)
    """The threads in `_other`, where they are counted."""
    _threads: list[_Thread] = field(default_factory=list)
    _other: set[int] = field(default_factory=set)
    """Threads known to be no computing ones."""

    @property
    def ids(self) -> list[int]:
        return [thread.id for thread in self._threads]

    def look(self) -> None:
        """Find the threads, the engine's first, and note what each has used so far.

        Called by the engine's thread.
        """
        own = threading.get_native_id()
        there = _threads_there() | {own}
        kept = {thread.id: thread for thread in self._threads if thread.id in there}
        self._visitors &= there
        self._other = (self._other & there) | self._visitors
        for number in sorted(there - kept.keys() - self._other):
            if number == own or _is_worker(number, own):
                kept[number] = _Thread.find(number)
            else:
                self._other.add(number)
        self._threads = sorted(kept.values(), key=lambda thread: (thread.id != own, thread.id))
        self._visits.clear()
        if self.come_and_go:
            self._others = [_Thread(number, None) for number in sorted(self._other)]
        for thread in self._threads:
            thread.cpu_before_s = thread.read_cpu()
            thread.delay_before_s = thread.read_delay()

    def visit(self) -> None:
        """Note what the calling thread and its workers have used, which began after the look.

        Called by that thread, before it ends.
        """
        own = threading.get_native_id()
        # The system may still have one that has visited and ended.
        known = self._other.union(self._visitors, self.ids) - {own}
        new = [number for number in sorted(_threads_there() - known) if number != own]
        threads = [_Thread.find(own), *(_Thread.find(n) for n in new if _is_worker(n, own))]
        self._visitors.update(thread.id for thread in threads)
        self._visits.append(_used(threads, [thread.read_cpu() for thread in threads]))

    def cpu_s(self) -> float:
        """Processor seconds of all, since they began; takes half a microsecond a thread."""
        if self.come_and_go:
            return time.process_time() - sum(thread.read_cpu() for thread in self._others)
        if len(self._threads) == 1:
            return self._threads[0].read_cpu()
        return sum(thread.read_cpu() for thread in self._threads)

    def since_look(self) -> ThreadUse:
        """What they have done since the last look at them."""
        cpu = [thread.read_cpu() - thread.cpu_before_s for thread in self._threads]
        uses = [_used(self._threads, cpu), *self._visits]
        # Threads that come and go compute while the engine's wait for them.
        delays = [use.run_delay_s for use in uses]
        delay = None if None in delays else sum(each for each in delays if each is not None)
        return ThreadUse(max(use.used for use in uses), delay, self._cpus())

    def _cpus(self) -> dict[int, frozenset[int]]:
        cpus = {}
        for thread in self._threads:
            with contextlib.suppress(ProcessLookupError):
                cpus[thread.id] = frozenset(os.sched_getaffinity(thread.id))
        return cpus


def _threads_there() -> set[int]:
    with contextlib.suppress(OSError):
        return {int(path.name) for path in TASKS.iterdir()}
    return set()


def _used(threads: Sequence[_Thread], cpu: Sequence[float]) -> ThreadUse:
    """Of threads that compute together, the engine's first, and what they used of processors."""
    used = [
        thread
        for thread, seconds in zip(threads, cpu, strict=True)
        if seconds > _USED_SHARE * cpu[0]
    ]
    delays = [thread.delay_since_look() for thread in used]
    known = [delay for delay in delays if delay is not None]
    delay = sum(known) / len(known) if known and len(known) == len(delays) else None
    return ThreadUse(len(used), delay)


def _is_worker(number: int, own: int) -> bool:
    """OpenMP's workers carry their creator's name; gloo's and torch's have names of their own,
    and Python knows the others.
    """
    if number in {thread.native_id for thread in threading.enumerate()}:
        return False
    try:
        return (TASKS / str(number) / "comm").read_bytes() == (
            TASKS / str(own) / "comm"
        ).read_bytes()
    except OSError:
        return False
