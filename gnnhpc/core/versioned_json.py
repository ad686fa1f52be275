"""Stored JSON: atomic writing, and reading that reports what is wrong with a file in one line."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import secrets
from collections.abc import Collection, Hashable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from gnnhpc.core.errors import InputError
from gnnhpc.core.settings import input_error, short_value

Record = TypeVar("Record")
DIGEST = "digest"
"""The key under which a stored object has the digest of its content."""


def read_object(path: Path, allowed: str) -> dict[str, Any]:
    """The one object in a file.

    Raises FileNotFoundError if there is none, and InputError for one that cannot be read or holds
    anything else; `allowed` describes what it should hold.
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
        raise InputError(where, None, short_value(raw), allowed)
    return raw


def check_version(raw: dict[str, Any], version: int, where: object, key: str = "version") -> None:
    """Raises InputError unless what was read is of this version."""
    found = raw.get(key)
    # True is equal to 1.
    if found != version or isinstance(found, bool):
        raise InputError(where, key, found if key in raw else "nothing", str(version))


def build_record(
    cls: type[Record], raw: dict[str, Any], where: object, below: str | None = None
) -> Record:
    """A dataclass with the fields in `raw`; raises InputError naming the first that does not fit.

    Unknown keys are refused where the class has `__pydantic_config__` say so. `below` is the key
    that holds the fields.
    """
    try:
        record: Record = _adapter(cast("Hashable", cls)).validate_python(raw)
    except ValidationError as error:
        raise input_error(error, where, below=below) from None
    return record


@functools.cache
def _adapter(cls: Any) -> TypeAdapter[Any]:
    return TypeAdapter(cls)


def content_digest(raw: Mapping[str, Any], leaving_out: Collection[str] = ()) -> str:
    """SHA-256 of an object's values by key, less those left out and the digest itself."""
    kept = {key: each for key, each in raw.items() if key != DIGEST and key not in leaving_out}
    # JSON turns keys that are numbers into text, which is sorted in another order.
    kept = json.loads(json.dumps(kept))
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def with_digest(raw: Mapping[str, Any], leaving_out: Collection[str] = ()) -> dict[str, Any]:
    return {**raw, DIGEST: content_digest(raw, leaving_out)}


def temporary_beside(path: Path) -> Path:
    """A name that no other writer uses; nodes that share a folder may share process ids."""
    return path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")


def write_atomically(path: Path, text: str) -> None:
    """Write beside `path` and rename, so that readers see all of it or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_beside(path)
    try:
        with temporary.open("w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
