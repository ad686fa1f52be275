"""Downloads of published data sets into a data root, whole or not at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gnnhpc.core.errors import GnnhpcError, InputError
from gnnhpc.data.commands.checksums import read_checksums, write_checksums
from gnnhpc.data.fetch.atomic_folder import adding
from gnnhpc.data.fetch.download import DownloadError, Progress, download
from gnnhpc.data.files import Download, Files, sha256
from gnnhpc.data.settings import Data

Starting = Callable[[Download], Progress | None]
"""Told of each address before it is asked; returns what is told of its bytes."""


def get_data(data: Data, root: Path, starting: Starting) -> list[str]:
    """Fetch the files of a data set that `root` lacks; returns lines that say what was done.

    Raises InputError for data without files and a root that cannot be written, GnnhpcError where
    an address fails; then nothing was added.
    """
    files = data.files()
    if files is None:
        raise InputError(f"data {data.name}", None, "no published files", "see `gnnhpc data list`")
    folder = files.directory(root)
    missing = files.missing(root)
    if not missing:
        return [f"{data.name} is here already: {folder}"]
    wanted = [one for one in files.downloads if one.archive or one.file in missing]
    try:
        with adding(folder) as temporary:
            lines = [_one(one, temporary, starting) for one in wanted]
            _check_delivered(files, missing, temporary)
            new = [path for path in temporary.rglob("*") if path.is_file()]
            sums = {path.relative_to(temporary).as_posix(): sha256(path) for path in new}
        # What was there before stays as it was recorded, or unrecorded.
        write_checksums(folder, _of_those_added(sums, folder) | read_checksums(folder))
    except DownloadError as error:
        raise GnnhpcError(
            f"data {data.name}: {error}; nothing was added. Run `gnnhpc data get {data.name}` "
            f"where there is a network, or put {_by_hand(wanted)} into {folder}"
        ) from None
    except OSError as error:
        reason = f"{error.strerror or error}: {folder}"
        raise InputError(root, "data root", reason, "a folder that may be written") from None
    return [*lines, f"{data.name} is here: {folder}"]


def _one(wanted: Download, folder: Path, starting: Starting) -> str:
    found = download(wanted, folder, starting(wanted))
    if wanted.md5:
        return f"{wanted.url}: MD5 as published ({wanted.md5})"
    return f"{wanted.url}: no checksum is published; SHA-256 found: {found}"


def _check_delivered(files: Files, missing: list[str], folder: Path) -> None:
    absent = [name for name in missing if not (folder / name).is_file()]
    if absent:
        sources = ", ".join(one.url for one in files.downloads)
        raise DownloadError(f"{sources} sent no {', '.join(absent)}")


def _of_those_added(sums: dict[str, str], folder: Path) -> dict[str, str]:
    """Without files whose place was taken by another content."""
    return {name: digest for name, digest in sums.items() if sha256(folder / name) == digest}


def _by_hand(wanted: list[Download]) -> str:
    first = wanted[0]
    what = f"the files of {first.url}" if first.archive else first.url
    more = len(wanted) - 1
    return f"{what} and {more} more" if more else what
