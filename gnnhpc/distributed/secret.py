"""The secret by which the ranks of a run know each other: a file that its user alone can read.

A job's id, its nodes and its ports are known to everybody on a cluster. Whoever holds the secret
proves it by a keyed hash of numbers that both sides have just drawn; it is never sent.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import stat
import time
from pathlib import Path

from gnnhpc.core.errors import GnnhpcError, InputError

_BYTES = 32
_OWNERS_ALONE = 0o700
_MAKE_ANOTHER = "remove it, and the next job makes another"


class Secret:
    """Proves that its holder has it; no text of this object shows it."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def proof(self, *parts: str | int) -> str:
        """A keyed hash of these parts (HMAC-SHA256, RFC 2104): 64 hexadecimal digits."""
        return hmac.new(self._key, json.dumps(parts).encode(), hashlib.sha256).hexdigest()

    def proves(self, proof: str, *parts: str | int) -> bool:
        """Whether this is the proof of these parts, found out in a time that does not tell."""
        return hmac.compare_digest(proof.encode(), self.proof(*parts).encode())


def make_secret(path: Path) -> None:
    """Write a new secret unless there is one; of two made at once one stays.

    Raises InputError where the folder cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        path.parent.mkdir(mode=_OWNERS_ALONE, parents=True, exist_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "w", encoding="ascii") as stream:
                stream.write(secrets.token_hex(_BYTES) + "\n")
                stream.flush()
                os.fsync(stream.fileno())
            with contextlib.suppress(FileExistsError):
                os.link(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(
            path, None, f"not there, and cannot be made ({error.strerror})", "a folder of one's own"
        ) from None


def read_secret(path: Path) -> Secret | None:
    """None where there is none yet.

    Raises InputError for one that cannot be read, that others may read, or that is damaged.
    """
    try:
        with path.open("rb") as stream:
            mode = stat.S_IMODE(os.fstat(stream.fileno()).st_mode)
            text = stream.read(4 * _BYTES).strip()
    except FileNotFoundError:
        return None
    except OSError as error:
        allowed = f"a run of one's own: copy it without {path.parent.name}/, which a job makes"
        raise InputError(path, None, f"unreadable ({error.strerror})", allowed) from None
    if mode & 0o077:
        found = f"mode {mode:04o}, open to others"
        raise InputError(path, None, found, f"0600; {_MAKE_ANOTHER}")
    try:
        key = bytes.fromhex(text.decode("ascii"))
    except ValueError:
        key = b""
    if len(key) != _BYTES:
        allowed = f"{2 * _BYTES} hexadecimal digits; {_MAKE_ANOTHER}"
        raise InputError(path, None, "something else", allowed)
    return Secret(key)


def shared_secret(path: Path, *, makes: bool, timeout_s: float) -> Secret:
    """The secret of all ranks: who `makes` it makes a missing one, the others wait for it.

    Raises as `make_secret` and `read_secret` do, and GnnhpcError if none is there in time.
    """
    if makes and (found := read_secret(path)) is not None:
        return found
    if makes:
        make_secret(path)
    deadline = time.monotonic() + timeout_s
    while (secret := read_secret(path)) is None:
        if time.monotonic() > deadline:
            raise GnnhpcError(
                f"rendezvous: {path} was not there within {timeout_s:.0f} s; rank 0 makes it, and "
                "all nodes must see the same folder"
            )
        time.sleep(0.1)
    return secret


def secret_of_user() -> Path:
    """The file of ranks that belong to no run, in the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(cache) / "gnnhpc" / "private" / "rendezvous"
