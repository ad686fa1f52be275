"""Reads JSON that we wrote: whatever is wrong with a file is one line that names it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic_core import from_json

from gnnhpc.core.errors import InputError

_WORDS = {
    type(None): "nothing",
    bool: "true or false",
    int: "a number",
    float: "a number",
    str: "text",
    list: "a list",
}


def read_object(path: Path, allowed: str) -> dict[str, Any]:
    """The one object in a file.

    Raises FileNotFoundError if there is none, and InputError for one that cannot be read or holds
    anything else; `allowed` says what it should hold.
    """
    return parse_object(read_bytes(path, allowed), path, allowed)


def read_object_lines(path: Path, allowed: str) -> list[tuple[str, dict[str, Any]]]:
    """The objects of a file that has one a line, each with its place; blank lines are skipped.

    Raises as `read_object` does.
    """
    lines = read_bytes(path, allowed).split(b"\n")
    places = ((f"{path}:{number}", line) for number, line in enumerate(lines, 1) if line.strip())
    return [(place, parse_object(line, place, allowed)) for place, line in places]


def read_bytes(path: Path, allowed: str) -> bytes:
    """Raises FileNotFoundError, and InputError for a folder or whatever else cannot be read."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise InputError(path, None, f"unreadable ({error.strerror})", allowed) from None


def parse_object(text: bytes | str, where: object, allowed: str) -> dict[str, Any]:
    """Raises InputError for damaged JSON, for text that is not UTF-8, and for no object."""
    try:
        raw = from_json(text)
    except ValueError as error:
        raise InputError(where, None, f"damaged JSON ({error})", allowed) from None
    if not isinstance(raw, dict):
        raise InputError(where, None, _WORDS[type(raw)], allowed)
    return raw


def check_version(raw: dict[str, Any], version: int, where: object, key: str = "version") -> None:
    """Raises InputError unless what was read is of this version."""
    found = raw.get(key)
    # True is equal to 1.
    if found != version or isinstance(found, bool):
        raise InputError(where, key, found if key in raw else "nothing", str(version))
