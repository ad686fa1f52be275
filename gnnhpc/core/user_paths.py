"""Paths as users write them."""

from __future__ import annotations

import os
from pathlib import Path

from gnnhpc.core.errors import InputError


def expand_user(path: str | Path, where: object, key: str | None = None) -> Path:
    """`path` with ~ and ~name replaced; raises InputError for a user this machine does not know."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        found = f"{path}, of a user that this machine does not know"
        raise InputError(where, key, found, "a path without ~, or of a known user") from None


def check_is_utf8(path: Path, where: object) -> None:
    """Raises InputError for a path, or one that it leads to, with bytes that are no UTF-8.

    Scripts, tables and pages are written in UTF-8, and some libraries take no other path.
    """
    for named in (str(path.absolute()), os.path.realpath(path)):
        try:
            named.encode()
        except UnicodeEncodeError:
            found = f"{named!r}, with bytes that are no UTF-8"
            raise InputError(where, None, found, "a path in UTF-8") from None
