"""submissions.jsonl: who submitted which cells, when, and under which job id."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from io import FileIO
from typing import ClassVar, Literal

from gnnhpc.core.errors import InputError
from gnnhpc.core.provenance import command_line, user
from gnnhpc.core.run_paths import RunPaths
from gnnhpc.core.versioned_json import build_record, read_object_lines
from gnnhpc.records.failures import utc_now
from jobs.slurm.job_array import JobArray, format_indices, parse_indices
from jobs.slurm.sbatch import MaybeSubmittedError

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
    """Slurm's job id, or the id of the process that submits and runs the cells of a local run."""
    at: str
    """UTC, ISO 8601."""
    user: str
    host: str
    command: tuple[str, ...] = ()
    started: float | None = None
    """Start of that process, seconds since the epoch, as process ids are reused."""
    version: Literal[1] = 1
    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    def numbers(self) -> list[int]:
        return parse_indices(self.indices, "submissions.jsonl")

    @property
    def is_of_this_host(self) -> bool:
        return self.host == socket.gethostname()

    @property
    def process_is_alive(self) -> bool:
        """Whether the process of a local run still runs; False on any other machine.

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
        return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except psutil.Error:
        return None


def read_submissions(paths: RunPaths) -> list[SubmissionRecord]:
    """All submissions, oldest first; raises InputError naming the damaged line."""
    try:
        lines = read_object_lines(paths.submissions, "one submission a line, as written")
    except FileNotFoundError:
        return []
    return [build_record(SubmissionRecord, raw, where) for where, raw in lines]


def record_job(
    paths: RunPaths, cluster: Cluster, array: JobArray, job: str, started: float | None = None
) -> None:
    """Record that an array, or a portion of it, is in; the caller holds the run's lock.

    Raises MaybeSubmittedError where that cannot be written.
    """
    record = SubmissionRecord(
        cluster=cluster,
        array=array.name,
        indices=format_indices(array.numbers),
        job_id=job,
        at=utc_now(),
        user=user(),
        host=socket.gethostname(),
        command=tuple(command_line()),
        started=started,
    )
    line = f"{json.dumps(asdict(record), ensure_ascii=False)}\n".encode()
    try:
        with paths.submissions.open("ab", buffering=0) as stream:
            _write_whole(stream, line)
    except OSError as error:
        words = f"{array.name} is job {job}, which could not be recorded: {error}"
        raise MaybeSubmittedError(words) from None


def _write_whole(stream: FileIO, data: bytes) -> None:
    """Add bytes at the end of a file, all of them or, with OSError, none."""
    size = stream.seek(0, os.SEEK_END)
    try:
        if stream.write(data) < len(data):
            raise OSError(errno.ENOSPC, "the disk is full")
        os.fsync(stream.fileno())
    except OSError:
        stream.truncate(size)
        raise


@contextlib.contextmanager
def run_lock(paths: RunPaths) -> Iterator[None]:
    """Hold the run's lock: one submit, rerun or clean at a time, the others wait.

    Raises InputError if this user may not write to the run.
    """
    from filelock import FileLock

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
