"""Local runs of one machine take turns, whoever started them: beside one another both are slow."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from gnnhpc.core.errors import InputError

VARIABLE = "GNNHPC_LOCAL_LOCK"
"""Another file, as for runs that share nothing; empty: they do not take turns."""
_POLL_S = 0.1


def lock_file() -> str:
    """Held by what runs cells; empty where runs do not take turns."""
    return os.environ.get(VARIABLE, str(Path(tempfile.gettempdir()) / "gnnhpc-local.lock"))


def ranks_lock_file() -> str:
    """Held by what watches a cell's ranks, which may go on a little where the other is killed."""
    name = lock_file()
    return name and f"{name}.ranks"


def check_turns() -> None:
    """Raises InputError where the lock's files cannot be opened."""
    if lock_file():
        for name in (lock_file(), ranks_lock_file()):
            os.close(_opened(name))


@contextlib.contextmanager
def machine_taken() -> Iterator[None]:
    """Wait until no other local run measures on this machine, and be the one that does.

    Raises InputError as `check_turns` does.
    """
    if not lock_file():
        yield
        return
    with contextlib.ExitStack() as opened:
        runs = _opened(lock_file())
        opened.callback(os.close, runs)
        ranks = _opened(ranks_lock_file())
        opened.callback(os.close, ranks)
        told = False
        for descriptor in (runs, ranks):
            while not _locked(descriptor):
                if not told:
                    words = "another local run measures on this machine: waiting for its end"
                    print(f"{words} ({lock_file()})", file=sys.stderr, flush=True)
                told = True
                time.sleep(_POLL_S)
        fcntl.flock(ranks, fcntl.LOCK_UN)
        yield


def _opened(name: str) -> int:
    """Whoever's file it is: a lock needs no right to write, but that all may read it."""
    try:
        with contextlib.suppress(FileExistsError):
            descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC)
            os.fchmod(descriptor, 0o644)
            return descriptor
        return os.open(name, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        found = f"{name!r} ({error.strerror})"
        allowed = "a file that all may read, or empty"
        raise InputError("environment", VARIABLE, found, allowed) from None


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
