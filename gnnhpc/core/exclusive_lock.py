"""A lock that one process at a time holds, also where the file system knows no `flock`.

Lustre mounted without it refuses `flock`, and so does NFS without its lock service. There a file
that only one can create stands for the lock, with its owner written into it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from gnnhpc.core.errors import InputError
from gnnhpc.core.process_start import process_start_ticks

PATIENCE_S = 60.0
"""How long one owner on another host is waited for: whether it still runs cannot be seen here."""
_REFUSED = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EBADF, errno.EINVAL}
_POLL_S = 0.1


@contextlib.contextmanager
def exclusive_lock(path: Path, patience_s: float = PATIENCE_S) -> Iterator[None]:
    """Hold the lock `path` within the block; others wait for it.

    A lock that a dead process left is taken over: at once with `flock`, and without it where that
    process was of this host. Raises OSError where no file can be made, InputError naming the file
    to remove where an owner on another host, or one that cannot be read, keeps it too long.
    """
    with path.open("a") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in _REFUSED:
                raise
        else:
            yield
            return
    owned = path.with_name(f"{path.name}.owner")
    mine = f"{socket.gethostname()} {os.getpid()} {process_start_ticks(os.getpid())}\n"
    _own(owned, mine, patience_s)
    try:
        yield
    finally:
        if _owner(owned) == mine:
            owned.unlink(missing_ok=True)


def _own(owned: Path, mine: str, patience_s: float) -> None:
    """Create the owner's file, waiting for its turn."""
    seen, since = "", time.monotonic()
    while not _create(owned, mine):
        owner = _owner(owned)
        if owner != seen:
            seen, since = owner, time.monotonic()
        alive = _is_alive_here(owner)
        if alive is False:
            _take_over(owned, owner)
        elif alive is None and time.monotonic() - since > patience_s:
            raise InputError(
                owned,
                None,
                f"a lock of {_described(owner)}, kept for more than {patience_s:.0f} s",
                "to try again, or to remove that file if this process is dead",
            )
        time.sleep(_POLL_S)


def _create(owned: Path, mine: str) -> bool:
    """Whether this process has created the file, which no second one can."""
    try:
        descriptor = os.open(owned, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    except FileExistsError:
        return False
    try:
        os.write(descriptor, mine.encode())
    except OSError:
        owned.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
    return True


def _owner(owned: Path) -> str:
    """The text of the owner's file; empty where it is gone or not yet written."""
    try:
        return owned.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _is_alive_here(owner: str) -> bool | None:
    """Whether the owner runs on this host; None for another host's, and for no readable owner."""
    host, _, process = owner.partition(" ")
    pid, _, started = process.strip().partition(" ")
    if host != socket.gethostname() or not (pid.isdecimal() and started.isdecimal()):
        return None
    return process_start_ticks(int(pid)) == int(started)


def _take_over(owned: Path, dead: str) -> None:
    """Remove the file of a dead owner.

    One process at a time looks and removes, or the second would remove the file of whoever came
    after the first; the folder for temporary files is this host's own, and has locks.
    """
    turn = Path(tempfile.gettempdir()) / f"gnnhpc-lock-{os.getuid()}"
    with turn.open("a") as stream:
        with contextlib.suppress(OSError):
            fcntl.lockf(stream, fcntl.LOCK_EX)
        if _owner(owned) == dead:
            owned.unlink(missing_ok=True)


def _described(owner: str) -> str:
    host, _, process = owner.partition(" ")
    return f"process {process.split()[0]} on {host}" if process.strip() else "an unknown process"
