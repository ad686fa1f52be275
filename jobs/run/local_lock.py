"""The machine's lock: one local run measures at a time."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

LOCK_VARIABLE = "GNNHPC_LOCAL_LOCK"
"""Another file for the lock; empty for runs that may run at the same time."""


@contextlib.contextmanager
def machine_lock() -> Iterator[None]:
    """Wait until no other local run measures on this machine, and keep others from it."""
    from filelock import FileLock, Timeout

    name = os.environ.get(LOCK_VARIABLE, str(Path(tempfile.gettempdir()) / "gnnhpc-local.lock"))
    if not name:
        yield
        return
    lock = FileLock(name, mode=0o666)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        print("waits for another local run on this machine", file=sys.stderr, flush=True)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
