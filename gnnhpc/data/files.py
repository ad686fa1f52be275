"""Which files a data set consists of, and where they are published. Free of torch."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gnnhpc.core.errors import InputError


@dataclass(frozen=True)
class Download:
    """One address: of a file, or of an archive of several."""

    url: str
    file: str = ""
    """Where the file goes, seen from the data set's folder; empty for an archive."""
    archive: Literal["tar.gz", "zip"] | None = None
    strip: int = 0
    """Leading folders of the archive's own that are left out."""
    md5: str | None = None
    """As published; none where nobody publishes one."""
    megabytes: int | None = None
    """About, where it is much."""


@dataclass(frozen=True)
class Files:
    """The files of a data set under a data root."""

    folder: str
    """Seen from the data root."""
    names: tuple[str, ...]
    """Seen from the folder, in a fixed order."""
    downloads: tuple[Download, ...]

    def directory(self, root: Path) -> Path:
        return root / self.folder

    def missing(self, root: Path) -> list[str]:
        """The names that are no file there."""
        return [name for name in self.names if not (self.directory(root) / name).is_file()]


def sha256(path: Path) -> str:
    """The digest of a file, read piece by piece; InputError where it cannot be read."""
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise InputError(path, None, error.strerror or str(error), "a readable file") from None
