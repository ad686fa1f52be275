"""Opening a run folder, locking it for one writer, and appending whole lines to its files."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from gnnhpc.core.errors import GnnhpcError, InputError
from gnnhpc.core.run_paths import RunPaths


def open_run(run: str | Path) -> RunPaths:
    """The paths of the run folder that a user named; raises InputError if it is no run folder."""
    paths = RunPaths(Path(run).absolute())
    if not paths.manifest.is_file():
        found = "no manifest.jsonl in it" if paths.root.is_dir() else "no such folder"
        raise InputError(str(run), None, found, "a run folder, such as runs/quickstart")
    return paths


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


def append_lines(path: Path, lines: Sequence[str]) -> None:
    """Add whole lines to the end of a file, all of them or none; the caller holds the lock.

    Raises GnnhpcError if the disk has no room, InputError if the file ends within a line.
    """
    data = "".join(line + "\n" for line in lines).encode()
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            raise InputError(path, None, "a last line cut short", "whole lines")
        try:
            complete = os.write(descriptor, data) == len(data)
            os.fsync(descriptor)
        except OSError as error:
            os.ftruncate(descriptor, size)
            raise GnnhpcError(f"{path}: {error.strerror}, nothing added") from None
        if not complete:
            os.ftruncate(descriptor, size)
            raise GnnhpcError(f"{path}: the disk is full, nothing added")
    finally:
        os.close(descriptor)
