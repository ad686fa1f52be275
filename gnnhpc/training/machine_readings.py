"""What Linux, the device and torch count for this process, read once a step and outside of it."""

from __future__ import annotations

import contextlib
import functools
import os
import resource
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from gnnhpc.distributed.cpus import process_cpus
from gnnhpc.models.layers.compiled import compilations

SCHEDSTAT = Path("/proc/self/schedstat")
STAT = Path("/proc/stat")
STATUS = Path("/proc/self/status")
CLEAR_REFS = Path("/proc/self/clear_refs")
_MOST_BYTES = 2**16
"""More than is needed of any of them: /proc/stat begins with some seventy bytes for each CPU."""


@dataclass(frozen=True)
class MachineReadings:
    """Counters since the process or the machine started; None where the system does not say."""

    cpu_s: float
    """Processor seconds of all threads of this process."""
    involuntary_switches: int
    steal_s: float | None
    """Seconds that the host has taken from a CPU this process may use, on average over those."""
    run_delay_s: float | None
    """Seconds in which the main thread could have run and had no processor."""
    compilations: int
    """Forwards and backwards that torch has compiled."""

    @classmethod
    def now(cls) -> MachineReadings:
        return cls(
            time.process_time(),
            resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw,
            _steal_s(),
            _run_delay_s(),
            compilations(),
        )

    def since(self, before: MachineReadings) -> MachineReadings:
        """What was counted between two readings."""
        return MachineReadings(
            self.cpu_s - before.cpu_s,
            self.involuntary_switches - before.involuntary_switches,
            _difference(self.steal_s, before.steal_s),
            _difference(self.run_delay_s, before.run_delay_s),
            self.compilations - before.compilations,
        )


def _difference(now: float | None, before: float | None) -> float | None:
    return None if now is None or before is None else max(0.0, now - before)


def _run_delay_s() -> float | None:
    """The second number of schedstat, in nanoseconds (proc(5))."""
    try:
        return int(_read(SCHEDSTAT).split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return None


def _steal_s() -> float | None:
    """Field 8 of each CPU's line, in clock ticks (proc(5))."""
    try:
        lines = _read(STAT).partition(b"\nintr")[0].splitlines()
        fields = [line.split() for line in lines]
        ticks = [int(each[8]) for each in fields if each[0] in _cpu_names()]
        return statistics.fmean(ticks) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return None


def _read(path: Path) -> bytes:
    """What a file of /proc says now; the file stays open, as opening takes longer than reading."""
    return os.pread(_descriptor(path, os.getpid()), _MOST_BYTES, 0)


@functools.cache
def _descriptor(path: Path, process: int) -> int:
    """The open file, of this process: after a fork /proc/self is another."""
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


@functools.cache
def _cpu_names() -> frozenset[bytes]:
    """Names of the CPUs of this process, as in /proc/stat."""
    return frozenset(b"cpu%d" % number for number in process_cpus())


def reset_peak_memory(devices: Sequence[torch.device]) -> None:
    """Begin the peaks of memory anew, so that they are those of what follows.

    Linux lets a process reset its own peak (proc(5), clear_refs); where it does not, the peak of
    the host's memory stays that of all that the process has done.
    """
    with contextlib.suppress(OSError):
        CLEAR_REFS.write_text("5", encoding="ascii")
    for device in devices:
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)


def peak_rss_mib() -> float:
    """The most memory that this process has held since the last reset, in MiB.

    VmHWM of proc(5), in KiB. Without it ru_maxrss, which is too large in a process that a larger
    one has started, because it is kept across exec.
    """
    with contextlib.suppress(OSError, IndexError):
        return int(_read(STATUS).partition(b"VmHWM:")[2].split()[0]) / 1024.0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0


def peak_device_mib(devices: Sequence[torch.device]) -> float | None:
    """The most memory of tensors since the last reset, in MiB, on the GPU that held most; None on a
    CPU."""
    gpus = [device for device in devices if device.type == "cuda"]
    return max((torch.cuda.max_memory_allocated(gpu) / 2**20 for gpu in gpus), default=None)
