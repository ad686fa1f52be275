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


@contextlib.contextmanager
def machine_taken() -> Iterator[None]:
    """Wait until no other local run measures on this machine, and be the one that does."""
    name = os.environ.get(VARIABLE, str(Path(tempfile.gettempdir()) / "gnnhpc-local.lock"))
    if not name:
        yield
        return
    descriptor = _opened(name)
    try:
        if not _locked(descriptor):
            print(
                f"another local run measures on this machine: waiting for its end ({name})",
                file=sys.stderr,
                flush=True,
            )
            while not _locked(descriptor):
                time.sleep(_POLL_S)
        yield
    finally:
        os.close(descriptor)


def _opened(name: str) -> int:
    """Whoever's file it is: a lock needs no right to write."""
    try:
        return os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except PermissionError:
        return os.open(name, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        found = f"{name!r} ({error.strerror})"
        raise InputError("environment", VARIABLE, found, "a file that can be made") from None


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
