"""The data root and the files of data sets under it. Does not import torch."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import platformdirs

from gnnhpc.core.errors import InputError
from gnnhpc.core.settings import expand_user
from gnnhpc.core.versioned_json import write_atomically

ROOT_VARIABLE = "GNNHPC_DATA"
CACHE_VARIABLE = "GNNHPC_CACHE"
CHECKSUMS = "SHA256SUMS"
"""The record of a data set's digests, beside its files; `sha256sum -c` reads it too."""


def cache_root() -> Path:
    """The folder of the cache: $GNNHPC_CACHE, else the user's own cache folder."""
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return expand_user(named, "environment", CACHE_VARIABLE).absolute()
    return platformdirs.user_cache_path("gnnhpc").absolute()


def data_root(flag: str | Path | None) -> Path | None:
    """The folder of a flag or spec, else $GNNHPC_DATA, else the first default that exists.

    The path is absolute, so that a job which starts elsewhere finds the same folder. A data set's
    `check` finds out whether a named folder exists.
    """
    named = flag or os.environ.get(ROOT_VARIABLE)
    if named:
        return expand_user(named, "data root").absolute()
    return next((folder for folder in default_roots() if folder.is_dir()), None)


def default_roots() -> tuple[Path, ...]:
    """The folders where data are looked for without a flag or variable, in this order."""
    return Path("data").absolute(), cache_root() / "data"


def existing_root(name: str, root: Path | None) -> Path:
    """`root`; raises InputError where there is none for the data set `name`."""
    if root is None or not os.access(root, os.R_OK | os.X_OK):
        places = " or ".join(str(folder) for folder in default_roots())
        raise InputError(
            f"data {name}",
            "data root",
            "none" if root is None else f"no folder that may be read: {root}",
            f"a folder by --data-root, data_root in the spec or ${ROOT_VARIABLE}, else {places}, "
            f"which `gnnhpc data get {name}` makes",
        )
    return root


@dataclass(frozen=True)
class Download:
    """One address: of a file, or of an archive of several files."""

    url: str
    file: str = ""
    """The file's place in the data set's folder; empty for an archive."""
    archive: Literal["tar.gz", "zip"] | None = None
    md5: str | None = None
    """The published digest, if there is one."""
    megabytes: int | None = None
    """The approximate size of a large download."""


@dataclass(frozen=True)
class Files:
    """The files of a data set under a data root."""

    folder: str
    """Relative to the data root."""
    names: tuple[str, ...]
    """Relative to the folder, in a fixed order."""
    downloads: tuple[Download, ...]
    source: str = ""
    """Where files are published that no download gets."""

    def directory(self, root: Path) -> Path:
        return root / self.folder

    def missing(self, root: Path | None) -> list[str]:
        """The names of files that do not exist: all without a data root."""
        return [n for n in self.names if root is None or not (self.directory(root) / n).is_file()]

    def how_to_get(self, data: str) -> str:
        return f"`gnnhpc data get {data}`" if self.downloads else f"the file of {self.source}"

    def readable(self, data: str, root: Path | None) -> list[Path]:
        """The paths of all files of a data set; raises InputError for one that cannot be read."""
        folder = self.directory(existing_root(data, root))
        paths = [folder / name for name in self.names]
        for path in paths:
            if not os.access(path, os.R_OK):
                raise InputError(path, None, "no file that may be read", self.how_to_get(data))
        return paths


def sha256(path: Path) -> str:
    """The digest of a file; raises InputError where it cannot be read."""
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise InputError(path, None, error.strerror or str(error), "a readable file") from None


def read_checksums(folder: Path) -> dict[str, str]:
    """The SHA-256 of each file, relative to `folder`; empty where nothing was recorded."""
    try:
        lines = (folder / CHECKSUMS).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return {}
    pairs = (line.split("  ", 1) for line in lines if "  " in line)
    return {name: digest for digest, name in pairs}


def record_checksums(folder: Path, names: Sequence[str]) -> int:
    """Record the digests of those of these files that have none, and return how many.

    Raises OSError where the record cannot be written.
    """
    known = read_checksums(folder)
    new = {name: sha256(folder / name) for name in names if name not in known}
    if new:
        lines = (f"{digest}  {name}\n" for name, digest in sorted((known | new).items()))
        write_atomically(folder / CHECKSUMS, "".join(lines))
    return len(new)


def changed_files(folder: Path) -> list[str]:
    """The recorded files whose content is not the recorded one."""
    return [
        name
        for name, digest in read_checksums(folder).items()
        if (folder / name).is_file() and sha256(folder / name) != digest
    ]
