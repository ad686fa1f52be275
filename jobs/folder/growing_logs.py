"""Log files that others still write: their last lines, and then each new one."""

from __future__ import annotations

import os
from pathlib import Path

_BLOCK_BYTES = 64 * 1024


class GrowingLog:
    """One file, read from its end onwards as it grows; it need not exist yet."""

    def __init__(self, path: Path, lines: int | None = None) -> None:
        """Begins with the file's last `lines` lines; None begins with its first."""
        self.path = path
        self._offset = 0 if lines is None else offset_of_last_lines(path, lines)
        self._rest = b""

    def new_lines(self, *, ended: bool = False) -> list[str]:
        """Lines that were completed since the last call, and `ended` an incomplete one too."""
        try:
            with self.path.open("rb") as stream:
                if self._offset > stream.seek(0, os.SEEK_END):
                    self._offset, self._rest = 0, b""
                stream.seek(self._offset)
                data = stream.read()
        except OSError:
            data = b""
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if ended and self._rest:
            lines, self._rest = [*lines, self._rest], b""
        return [line.decode(errors="replace").rstrip("\r") for line in lines]


def offset_of_last_lines(path: Path, lines: int) -> int:
    """Where the last `lines` lines of a file begin; 0 for a shorter file, or none."""
    try:
        with path.open("rb") as stream:
            end = stream.seek(0, os.SEEK_END)
            if lines <= 0:
                return end
            # The line break at the end of the file ends its last line and begins none.
            wanted, place = lines, max(0, end - 1)
            while place > 0:
                size = min(_BLOCK_BYTES, place)
                place -= size
                stream.seek(place)
                block = stream.read(size)
                if block.count(b"\n") >= wanted:
                    for _ in range(wanted):
                        size = block.rindex(b"\n", 0, size)
                    return place + size + 1
                wanted -= block.count(b"\n")
    except OSError:
        pass
    return 0
