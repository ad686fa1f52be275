"""What Linux, the device and torch count for this process, read once a step and outside of it."""

from __future__ import annotations

import contextlib
import functools
import os
import resource
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from gnnhpc.distributed.cpus import process_cpus
from gnnhpc.models.layers.compiled import compilations

SCHEDSTAT = Path("/proc/self/schedstat")
STAT = Path("/proc/stat")
STATUS = Path("/proc/self/status")
CLEAR_REFS = Path("/proc/self/clear_refs")
_MOST_BYTES = 2**16
"""More than is needed of any of them: /proc/stat begins with some seventy bytes for each CPU."""

Readings = dict[str, Any]
"""Counters since the process or the machine started, by their names in a step's record: processor
seconds of all threads, involuntary switches, seconds of `steal_s` and `run_delay_s`, forwards and
backwards that torch has compiled. None where the system does not say."""


def machine_readings() -> Readings:
    """Read all counters now."""
    return {
        "cpu_s": time.process_time(),
        "involuntary_switches": resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw,
        "steal_s": _steal_s(),
        "run_delay_s": _run_delay_s(),
        "compilations": compilations(),
    }


def counted_since(before: Mapping[str, Any]) -> Readings:
    """What was counted since these readings."""
    return {
        name: None if now is None or before[name] is None else max(now - before[name], 0)
        for name, now in machine_readings().items()
    }


def _run_delay_s() -> float | None:
    """Seconds in which the main thread could have run and had no processor: the second number of
    schedstat, in nanoseconds (proc(5))."""
    try:
        return int(_read(SCHEDSTAT).split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return None


def _steal_s() -> float | None:
    """Seconds that the host has taken from a CPU this process may use, on average over those: field
    8 of each CPU's line, in clock ticks (proc(5))."""
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


def reset_peak_rss() -> None:
    """Begin the peak of the host's memory anew, so that it is that of what follows.

    Linux lets a process reset its own peak (proc(5), clear_refs); where it does not, the peak stays
    that of all that the process has done.
    """
    with contextlib.suppress(OSError):
        CLEAR_REFS.write_text("5", encoding="ascii")


def peak_rss_mib() -> float:
    """The most memory that this process has held since the last reset, in MiB.

    VmHWM of proc(5), in KiB. Without it ru_maxrss, which is too large in a process that a larger
    one has started, because it is kept across exec.
    """
    with contextlib.suppress(OSError, IndexError):
        return int(_read(STATUS).partition(b"VmHWM:")[2].split()[0]) / 1024.0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0


def reset_peak_device(devices: Sequence[torch.device]) -> None:
    """Begin the peaks of the GPUs among these devices anew."""
    for device in devices:
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)


def peak_device_mib(devices: Sequence[torch.device], kept_bytes: int) -> float | None:
    """The most memory of tensors since the last reset, in MiB, on the GPU that held most, with the
    bytes that CUDA graphs keep beside; None on a CPU."""
    gpus = [device for device in devices if device.type == "cuda"]
    peak = max((torch.cuda.max_memory_allocated(gpu) for gpu in gpus), default=None)
    return None if peak is None else (peak + kept_bytes) / 2**20
