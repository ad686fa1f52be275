"""What Linux counts of this process and its CPUs: time that the host has taken, peak memory."""

from __future__ import annotations

import contextlib
import itertools
import os
import resource
import statistics
import threading
from pathlib import Path

SCHEDSTAT = Path("/proc/thread-self/schedstat")
STAT = Path("/proc/stat")
STATUS = Path("/proc/self/status")
STATM = Path("/proc/self/statm")
CLEAR_REFS = Path("/proc/self/clear_refs")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

PEAK_SHARE, PEAK_MIB = 0.02, 16.0
"""By how much a peak that begins anew may be more than what is held: pages are counted late."""

_of_thread = threading.local()


def read_schedstat() -> bytes:
    """What the system says of the calling thread now (proc(5)), for `delay_in`; empty where it says
    nothing.

    The file stays open, so that reading takes a microsecond.
    """
    try:
        number: int = _of_thread.number
    except AttributeError:
        number = _open_schedstat()
    try:
        return os.pread(number, 64, 0)
    except OSError:
        return b""


def delay_in(schedstat: bytes) -> float | None:
    """How long the thread could have run and had no processor, since it began; None where the
    system did not say.

    The second number, in ns.
    """
    try:
        return int(schedstat.split()[1]) / 1e9
    except (IndexError, ValueError):
        return None


def _open_schedstat() -> int:
    """The calling thread's, for as long as it lives; -1, which no file has, if there is none."""
    with contextlib.suppress(OSError):
        _of_thread.schedstat = SCHEDSTAT.open("rb", buffering=0)
        _of_thread.number = _of_thread.schedstat.fileno()
    return getattr(_of_thread, "number", -1)


def steal_s() -> float | None:
    """Seconds the host has taken, since boot, from a CPU this process may use, on average over
    those; None if the system does not say.

    Field 8 of each CPU's line, in clock ticks (proc(5)).
    """
    allowed = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    try:
        with STAT.open(encoding="ascii") as stream:
            cpus = itertools.takewhile(lambda line: line.startswith("cpu"), stream)
            ticks = [int(fields[8]) for fields in map(str.split, cpus) if fields[0] in allowed]
        return statistics.fmean(ticks) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return None


def running_system() -> str | None:
    """Names the system that runs here since its start; None where it does not say (proc(5)).

    Containers and several Slurm daemons of one machine have host names of their own, and this in
    common.
    """
    try:
        return BOOT_ID.read_text(encoding="ascii").strip() or None
    except (OSError, ValueError):
        return None


def forget_peak_rss() -> bool:
    """Begin the peak of `peak_rss_mib` anew, where the system lets a process do so (proc(5)).

    False where the peak is still one that was before: more than is held now.
    """
    with contextlib.suppress(OSError):
        CLEAR_REFS.write_text("5", encoding="ascii")
    held = resident_mib()
    return held is None or peak_rss_mib() <= held * (1 + PEAK_SHARE) + PEAK_MIB


def resident_mib() -> float | None:
    """What this program holds now, in MiB; None where the system does not say (proc(5), statm)."""
    try:
        pages = int(STATM.read_text(encoding="ascii").split()[1])
    except (OSError, IndexError, ValueError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def peak_rss_mib() -> float:
    """The most memory this program has held, in MiB.

    VmHWM of proc(5), in KiB. Without it ru_maxrss, which is too large in a process that a larger
    one has started, because it is kept across exec.
    """
    try:
        with STATUS.open(encoding="utf-8") as stream:
            for line in stream:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) / 1024.0
    except (OSError, IndexError, ValueError):
        pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0
