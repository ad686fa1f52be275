"""Records which processors a rank has and who uses them, once before and once after training."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Set
from pathlib import Path
from typing import Any

import psutil
import torch

from gnnhpc.distributed.cpus import process_cpus
from gnnhpc.records.schema import EventRecord
from gnnhpc.training.listeners import Listener
from gnnhpc.validation.audit.rank_records import PROCESSORS

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class ProcessorUse(Listener):
    """Reads the system's counters when training begins and when it ends."""

    def __init__(self) -> None:
        self._cpus: list[int] = []
        self._readings: list[tuple[float, float | None, float]] = []

    def training_begins(self, start: int) -> None:
        self._cpus = sorted(process_cpus())
        self._read()

    def training_ended(self, step: int) -> None:
        self._read()

    def _read(self) -> None:
        self._readings.append((time.perf_counter(), unused_s(set(self._cpus)), used_s()))

    def record(self) -> EventRecord:
        """The event that `audit.noise` reads, once training has ended.

        `by_anybody_s` and `by_process_s` are processor seconds on the rank's CPUs in `seconds`;
        they are left out where the system does not report them.
        """
        detail: dict[str, Any] = {
            "cpus": self._cpus,
            "system": running_system(),
            "threads": torch.get_num_threads(),
        }
        (began, unused_before, used_before), (ended, unused, used) = self._readings
        if unused is not None and unused_before is not None:
            seconds = ended - began
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
    """Processor seconds of this process and of those that it has started, which run or ended."""
    process = psutil.Process()
    seconds = sum(process.cpu_times()[:4])
    for child in process.children(recursive=True):
        with contextlib.suppress(psutil.Error):
            seconds += sum(child.cpu_times()[:2])
    return float(seconds)


def unused_s(cpus: Set[int]) -> float | None:
    """Seconds since boot in which no process ran on these CPUs, in sum: idle, waiting for storage,
    serving interrupts, or taken by the host; None if the system does not report it.
    """
    try:
        times = psutil.cpu_times(percpu=True)
        each = [times[number] for number in cpus]
        return float(sum(t.idle + t.iowait + t.irq + t.softirq + t.steal for t in each))
    except (OSError, IndexError, AttributeError):
        return None
