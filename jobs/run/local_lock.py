"""The machine's lock: one local run measures at a time."""

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
def machine_lock() -> Iterator[None]:
    """Wait until no other local run measures on this machine, and keep others from it.

    Raises InputError where the lock's file cannot be opened.
    """
    from filelock import FileLock, Timeout

    default = str(Path(tempfile.gettempdir()) / "gnnhpc-local.lock")
    name = os.environ.get(LOCK_VARIABLE, default)
    if not name:
        yield
        return
    lock = FileLock(name, mode=0o666)
    try:
        try:
            lock.acquire(timeout=0)
        except Timeout:
            print("waits for another local run on this machine", file=sys.stderr, flush=True)
            lock.acquire()
    except OSError as error:
        allowed = f"a file that may be written, or another ${LOCK_VARIABLE}"
        raise InputError(name, None, f"{error.strerror}", allowed) from None
    try:
        yield
    finally:
        lock.release()
