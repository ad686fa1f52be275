"""The machine's lock: one local run measures at a time, and those that wait know for which."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from gnnhpc.core.errors import InputError

LOCK_VARIABLE = "GNNHPC_LOCAL_LOCK"
"""Another file for the lock; empty for runs that may run at the same time."""


@contextlib.contextmanager
def machine_lock(run: Path) -> Iterator[None]:
    """Wait until no other local run measures on this machine, and keep others from it.

    Raises InputError where the lock's file cannot be opened.
    """
    name = _lock_name()
    if not name:
        yield
        return
    from filelock import FileLock, Timeout

    lock, holder = FileLock(name, mode=0o666), _holder_file(name)
    try:
        try:
            lock.acquire(timeout=0)
        except Timeout:
            other = running_here(run) or "another local run on this machine"
            print(f"waits for {other}", file=sys.stderr, flush=True)
            lock.acquire()
    except OSError as error:
        allowed = f"a file that may be written, or another ${LOCK_VARIABLE}"
        raise InputError(name, None, f"{error.strerror}", allowed) from None
    # Another user's file may be left from a process that was killed.
    with contextlib.suppress(OSError):
        holder.write_text(f"{run}, process {os.getpid()}", encoding="utf-8")
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            holder.unlink()
        lock.release()


def running_here(run: Path) -> str | None:
    """Another local run that measures on this machine now, in words; None without one."""
    try:
        text = _holder_file(_lock_name()).read_text(encoding="utf-8")
    except (OSError, UnicodeError):
        return None
    return None if text.startswith(f"{run}, ") else f"the local run {text}"


def _lock_name() -> str:
    default = str(Path(tempfile.gettempdir()) / "gnnhpc-local.lock")
    return os.environ.get(LOCK_VARIABLE, default)


def _holder_file(name: str) -> Path:
    return Path(f"{name}.holder")
