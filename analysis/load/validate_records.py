"""Checks that stored records are what the cell wrote, by digests and names, once."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gnnhpc.core.errors import InputError
from gnnhpc.core.versioned_json import parse_object, read_bytes
from gnnhpc.experiment.manifest import Cell
from gnnhpc.records.attempts import Attempt
from gnnhpc.records.schema import check_header

_EVENT = b'"kind": "event"'
"""What the line of an event contains, as it is written."""


def check_result(cell: Cell, attempt: Attempt) -> None:
    """Raises InputError for the result of another cell, attempt or experiment."""
    result, path = attempt.result, attempt.paths.result
    if result is None:
        return
    if result.cell != cell.id:
        raise InputError(path, "cell", result.cell, f"{cell.id}, whose folder this is")
    if result.attempt != attempt.number:
        raise InputError(path, "attempt", result.attempt, f"{attempt.number}, as its folder says")
    planned = cell.experiment.model_dump(mode="json")
    for key in cell.experiment.data.elsewhere:
        planned["data"].pop(key, None)
    _check_settings(planned, result.experiment, path, "")


def _check_settings(
    planned: Mapping[str, Any], actual: Mapping[str, Any], path: Path, prefix: str
) -> None:
    for key, value in planned.items():
        if key not in actual or actual[key] == value:
            continue
        if isinstance(value, dict) and isinstance(actual[key], dict):
            _check_settings(value, actual[key], path, f"{prefix}{key}.")
        else:
            allowed = f"{value}, as the manifest says"
            raise InputError(path, f"experiment.{prefix}{key}", actual[key], allowed)


def check_file_digest(path: Path, written: Mapping[str, Any] | None) -> bytes:
    """The content of a record file.

    Raises InputError for a missing file, and for one whose content is not what `written` says, the
    size and SHA-256 that the result has of it. Events may follow after that size.
    """
    try:
        content = read_bytes(path, "the records of each rank")
    except FileNotFoundError:
        raise InputError(path, None, "no such file", "the records of each rank") from None
    if written is None:
        return content
    size = written.get("size")
    digest = hashlib.sha256(content[:size]).hexdigest() if isinstance(size, int) else None
    if digest is None or digest != written.get("sha256"):
        raise InputError(path, "content", "changed since it was written", "as result.json has it")
    if any(_EVENT not in line for line in content[size:].splitlines()):
        found = f"records after byte {size}"
        raise InputError(path, "content", found, "no record after the attempt's end")
    return content


def split_header(
    text: bytes, path: Path, expected: Mapping[str, object]
) -> tuple[dict[str, Any] | None, bytes]:
    """The header of a record file, and its complete lines of steps and spans.

    None and nothing for a file whose rank died before it had written its header. Raises InputError
    for a header that is not the `expected` cell's, attempt's and rank's.
    """
    first, newline, body = text.partition(b"\n")
    if not newline:
        return None, b""
    header = check_header(parse_object(first, f"{path}:1", "one record a line"), path)
    for key, value in expected.items():
        if header[key] != value:
            raise InputError(path, key, header[key], f"{value}, as its path says")
    lines = body[: body.rfind(b"\n") + 1]
    if _EVENT in lines:
        # The detail of an event has no fixed columns.
        lines = b"".join(line for line in lines.splitlines(keepends=True) if _EVENT not in line)
    return header, lines
