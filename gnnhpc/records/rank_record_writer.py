"""Writes one rank's records: a header, then each step's lines before the next step begins."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from gnnhpc.core.errors import GnnhpcError
from gnnhpc.records.schema import EventRecord, Header, SpanRecord, StepRecord

FileDigest = dict[str, Any]
"""`size` in bytes and `sha256` of a file."""


class RecordWriter:
    """Appends whole lines; raises GnnhpcError naming the file where the disk refuses one.

    A line is one write, so a rank that dies leaves at most one unfinished line, the last.
    """

    def __init__(self, path: Path, header: Header) -> None:
        self.path = path
        try:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except OSError as error:
            raise GnnhpcError(f"{path}: cannot be written ({error.strerror})") from None
        self._size, self._digest = 0, hashlib.sha256()
        self.write(header)

    def write(self, *records: Header | StepRecord | SpanRecord | EventRecord) -> None:
        text = "".join(json.dumps(_compact(vars(record))) + "\n" for record in records)
        data = memoryview(text.encode())
        self._size += len(data)
        self._digest.update(data)
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
        except OSError as error:
            raise GnnhpcError(f"{self.path}: cannot be written ({error.strerror})") from None

    @property
    def written(self) -> dict[str, FileDigest]:
        """The file's name in the attempt's folder, and what has been written until now.

        The result has it, so that readers see what is missing.
        """
        return {self.path.name: {"size": self._size, "sha256": self._digest.hexdigest()}}

    def close(self) -> None:
        os.close(self._descriptor)


def _compact(record: dict[str, Any]) -> dict[str, Any]:
    """Seconds to the nanosecond: more digits are noise."""
    return {
        key: round(value, 9) if isinstance(value, float) else value for key, value in record.items()
    }
