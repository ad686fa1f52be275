"""Records which processors a rank has and who uses them, once before and once after training."""

from __future__ import annotations

import contextlib
import itertools
import os
import resource
import time
from collections.abc import Set
from pathlib import Path

import torch

from gnnhpc.batches.batch import Batches
from gnnhpc.distributed.cpus import process_cpus
from gnnhpc.records.schema import EventRecord
from gnnhpc.training.events import Listener
from gnnhpc.validation.audit.noise import PROCESSORS

STAT = Path("/proc/stat")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
CHILDREN = Path("/proc/thread-self/children")


class ProcessorUse(Listener):
    """Reads the system's counters when training begins and when it ends."""

    def __init__(self, batches: Batches) -> None:
        graph = batches.graph_metadata()
        # A graph on a GPU is sampled by the rank's own thread.
        self._workers = 0 if graph.get("graph_on") == "device" else graph.get("workers", 0)
        self._cpus: list[int] = []
        self._first: tuple[float, float | None, float] | None = None
        self._last: tuple[float, float | None, float] | None = None

    def training_begins(self, start: int) -> None:
        self._cpus = sorted(process_cpus())
        self._first = self._read()

    def training_ended(self, step: int) -> None:
        self._last = self._read()

    def _read(self) -> tuple[float, float | None, float]:
        return time.perf_counter(), unused_s(set(self._cpus)), used_s()

    def record(self) -> EventRecord:
        """The event that `validation.noise` reads, once training has ended.

        `by_anybody_s` and `by_process_s` are processor seconds on the rank's CPUs in `seconds`;
        they are left out where the system does not report them.
        """
        detail = {
            "cpus": self._cpus,
            "cpus_at_end": sorted(process_cpus()),
            "system": running_system(),
            "workers": self._workers,
            "threads": torch.get_num_threads(),
        }
        if self._first is not None and self._last is not None:
            (began, unused_before, used_before), (ended, unused, used) = self._first, self._last
            seconds = ended - began
            if unused is not None and unused_before is not None and seconds > 0:
                detail |= {
                    "seconds": seconds,
                    "by_anybody_s": len(self._cpus) * seconds - (unused - unused_before),
                    "by_process_s": used - used_before,
                    # Clock ticks are whole ones.
                    "resolution_s": 2 * len(self._cpus) / os.sysconf("SC_CLK_TCK"),
                }
        return EventRecord(PROCESSORS, 0.0, detail)


def running_system() -> str | None:
    """Names the running system since its boot; None where it has no name (proc(5)).

    Containers and several Slurm daemons of one machine have different host names and this name in
    common.
    """
    try:
        return BOOT_ID.read_text(encoding="ascii").strip() or None
    except (OSError, ValueError):
        return None


def used_s() -> float:
    """Processor seconds of this process and of those that the calling thread has started, which
    run (proc(5)) or have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = time.process_time() + ended.ru_utime + ended.ru_stime
    with contextlib.suppress(OSError, ValueError):
        for number in map(int, CHILDREN.read_text(encoding="ascii").split()):
            with contextlib.suppress(OSError):
                # The number of a process's clock is MAKE_PROCESS_CPUCLOCK in Linux's headers.
                seconds += time.clock_gettime(~number << 3 | 2)
    return seconds


def unused_s(cpus: Set[int]) -> float | None:
    """Seconds since boot in which no process ran on these CPUs, in sum: idle, waiting for storage,
    serving interrupts, or taken by the host; None if the system does not report it.

    These are fields 4 to 8 of each CPU's line, in clock ticks (proc(5)). Idle time is measured,
    while other fields may be sampled, so that used time is the rest.
    """
    allowed = {f"cpu{number}" for number in cpus}
    try:
        with STAT.open(encoding="ascii") as stream:
            lines = itertools.takewhile(lambda line: line.startswith("cpu"), stream)
            ticks = [
                sum(map(int, fields[4:9]))
                for fields in map(str.split, lines)
                if fields[0] in allowed
            ]
    except (OSError, ValueError):
        return None
    return sum(ticks) / os.sysconf("SC_CLK_TCK") if len(ticks) == len(cpus) else None
