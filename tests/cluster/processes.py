"""Processes that are known by pid and start time, so that a reused pid is never signalled."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

MARK = "GNNHPC_TEST_CLUSTER"
"""Environment variable that says whose a daemon is; what it starts inherits it."""


@dataclass(frozen=True)
class Process:
    """One process; `started` is its start time in clock ticks since boot."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> Process | None:
        """The living process with this pid, or None."""
        fields = _stat(pid)
        return None if fields is None else cls(pid, int(fields[19]))

    @property
    def alive(self) -> bool:
        fields = _stat(self.pid)
        return fields is not None and int(fields[19]) == self.started

    def send(self, number: signal.Signals) -> None:
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def to_line(self) -> str:
        return f"{self.pid} {self.started}\n"

    @classmethod
    def from_line(cls, line: str) -> Process:
        pid, started = line.split()
        return cls(int(pid), int(started))


def stop(processes: Iterable[Process], patience_s: float = 15.0) -> None:
    """Ask them to end, wait, and kill those that did not."""
    processes = list(processes)
    for process in processes:
        process.send(signal.SIGTERM)
    if not wait_for_end(processes, patience_s):
        for process in processes:
            process.send(signal.SIGKILL)
        wait_for_end(processes, patience_s)


def wait_for_end(processes: Iterable[Process], patience_s: float) -> bool:
    """True once none of them lives; False when they outlast our patience."""
    processes = list(processes)
    deadline = time.monotonic() + patience_s
    while any(process.alive for process in processes):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def marked(*marks: str) -> list[Process]:
    """Every process that carries one of these marks."""
    wanted = {f"{MARK}={mark}".encode() for mark in marks}
    found = []
    for pid in _pids():
        try:
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if not wanted.isdisjoint(variables) and (process := Process.of(pid)) is not None:
            found.append(process)
    return found


def with_children(processes: Iterable[Process]) -> list[Process]:
    """These processes and all that descend from them."""
    family = {process.pid: process for process in processes}
    parents = {pid: int(fields[1]) for pid in _pids() if (fields := _stat(pid)) is not None}
    grew = True
    while grew:
        new = {pid for pid, parent in parents.items() if parent in family} - family.keys()
        for pid in new:
            if (process := Process.of(pid)) is not None:
                family[pid] = process
        grew = any(pid in family for pid in new)
    return list(family.values())


def _pids() -> Iterator[int]:
    return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def _stat(pid: int) -> list[str] | None:
    """/proc/PID/stat after the command name (state first), or None if it is gone or a zombie."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else fields
