"""Paths as users write them."""

from __future__ import annotations

from pathlib import Path

from gnnhpc.core.errors import InputError


def expand_user(path: str | Path, where: object, key: str | None = None) -> Path:
    """`path` with ~ and ~name replaced; raises InputError for a user this machine does not know."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        found = f"{path}, of a user that this machine does not know"
        raise InputError(where, key, found, "a path without ~, or of a known user") from None
