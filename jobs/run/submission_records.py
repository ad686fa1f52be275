"""submissions.jsonl: who submitted which cells, when, and under which job id."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from gnnhpc.core.errors import GnnhpcError, InputError
from gnnhpc.core.run_paths import RunPaths
from gnnhpc.core.versioned_json import build_record
from gnnhpc.records.submissions import SUBMISSIONS_VERSION, read_submission_lines
from jobs.slurm.job_array import parse_indices

Cluster = Literal["slurm", "local"]
_CLOCK_S = 2.0
"""How far two readings of a process's start may be apart."""


@dataclass(frozen=True)
class SubmissionRecord:
    """One line of submissions.jsonl: tasks of one array, submitted together."""

    cluster: Cluster
    array: str
    indices: str
    """Indices of the cells, or numbers of the blocks: 3,5-7."""
    job_id: str
    """Slurm's job id, or the process id of the supervisor of a local run."""
    at: str
    """UTC, ISO 8601."""
    user: str
    host: str
    live: bool
    """Whether the checkout's code was to run."""
    site: dict[str, Any]
    """The site's name and settings."""
    command: tuple[str, ...] = ()
    started: float | None = None
    """Start of the local supervisor's process, seconds since the epoch: process ids are reused."""
    manifest: int | None = None
    """Inode of the run's manifest: a copy of the folder has another, and no supervisor."""
    version: int = SUBMISSIONS_VERSION
    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    def numbers(self) -> list[int]:
        return parse_indices(self.indices, "submissions.jsonl")

    @property
    def is_of_this_host(self) -> bool:
        return self.host == socket.gethostname()

    @property
    def place(self) -> str:
        """The host and process of a local run, in words."""
        return "on this machine" if self.is_of_this_host else f"on {self.host}"

    def task(self, number: int) -> str:
        """Slurm's name of the array task with this number: 1234_5."""
        return f"{self.job_id}_{number}"

    @property
    def supervisor_is_alive(self) -> bool:
        """Whether the supervisor of a local run still runs; False on any other machine.

        False also for this very process: a `submit --wait` that asks has finished its cells.
        """
        if self.cluster != "local" or self.started is None or not self.is_of_this_host:
            return False
        if int(self.job_id) == os.getpid():
            return False
        started = process_start(int(self.job_id))
        return started is not None and abs(started - self.started) < _CLOCK_S


def process_start(pid: int) -> float | None:
    """When a process of this machine began, seconds since the epoch; None if it does not run."""
    import psutil

    try:
        process = psutil.Process(pid)
        ended = process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
        return None if ended else process.create_time()
    except psutil.Error:
        return None


def read_submissions(paths: RunPaths) -> list[SubmissionRecord]:
    """All submissions, oldest first; raises InputError naming the damaged line."""
    submissions = []
    for where, raw in read_submission_lines(paths):
        submission = build_record(SubmissionRecord, raw, where)
        if submission.cluster == "local" and not submission.job_id.isdecimal():
            raise InputError(where, "job_id", repr(submission.job_id), "a process id")
        if submission.manifest != paths.manifest.stat().st_ino:
            submission = replace(submission, started=None)
        submissions.append(submission)
    return submissions


@contextlib.contextmanager
def run_lock(paths: RunPaths) -> Iterator[None]:
    """Hold the run's lock: one submit, rerun or clean at a time, the others wait.

    Files written within the block are readable by everyone, whatever the umask is. Raises
    InputError if this user may not write to the run.
    """
    from filelock import FileLock

    before = os.umask(0o022)
    try:
        lock = FileLock(paths.root / ".lock")
        try:
            lock.acquire()
        except OSError as error:
            allowed = "a run folder that this user may write to"
            raise InputError(paths.root, None, f"{error.strerror}", allowed) from None
        try:
            yield
        finally:
            lock.release()
    finally:
        os.umask(before)


def append_line(path: Path, line: str) -> None:
    """Add a line to the end of a file, all of it or nothing; the caller holds the run's lock.

    Raises GnnhpcError if the disk has no room, InputError if the file ends within a line.
    """
    data = f"{line}\n".encode()
    with path.open("a+b", buffering=0) as stream:
        size = stream.seek(0, os.SEEK_END)
        if size and os.pread(stream.fileno(), 1, size - 1) != b"\n":
            raise InputError(path, None, "a last line cut short", "whole lines")
        try:
            if stream.write(data) < len(data):
                raise OSError(errno.ENOSPC, "the disk is full")
            os.fsync(stream.fileno())
        except OSError as error:
            stream.truncate(size)
            raise GnnhpcError(f"{path}: {error.strerror}, nothing added") from None
