"""Downloads of published data sets into a data root, by pooch."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from gnnhpc.core.errors import GnnhpcError, InputError
from gnnhpc.data.data_cache import one_at_a_time
from gnnhpc.data.data_files import Download, Files, read_checksums, sha256, write_checksums
from gnnhpc.data.data_settings import Data

_SILENCE_S = 10.0
"""The seconds of waiting for an answer or for more of it."""


def get_data(data: Data, root: Path) -> list[str]:
    """Download the files of a data set that `root` lacks; returns lines that say what was done.

    Raises InputError for data without published files and for a root that cannot be written,
    GnnhpcError where an address fails; then nothing was added.
    """
    files = data.files()
    if files is None or not files.downloads:
        found = "no files to download"
        raise InputError(f"data {data.name}", None, found, "one that `gnnhpc data list` can get")
    folder = files.directory(root)
    try:
        with one_at_a_time(folder):
            missing = files.missing(root)
            if not missing:
                return [f"{data.name} is here already: {folder}"]
            needed = [each for each in files.downloads if each.archive or each.file in missing]
            lines = _add(files, needed, folder, missing)
    except _DownloadError as error:
        by_hand = f"the files of {needed[0].url}" if needed[0].archive else needed[0].url
        more = f" and {len(needed) - 1} more" if len(needed) > 1 else ""
        raise GnnhpcError(
            f"data {data.name}: {error}; nothing was added. Run `gnnhpc data get {data.name}` "
            f"where there is a network, or put {by_hand}{more} into {folder} and run "
            f"`gnnhpc data record {data.name}`"
        ) from None
    except OSError as error:
        reason = f"{error.strerror or error}: {folder}"
        raise InputError(root, "data root", reason, "a folder that may be written") from None
    return [*lines, f"{data.name} is here: {folder}"]


class _DownloadError(Exception):
    """Why a file could not be downloaded."""


def _add(files: Files, needed: list[Download], folder: Path, missing: list[str]) -> list[str]:
    """Download into a folder beside `folder`, then move each new file with one rename."""
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.partial-") as name:
        partial = Path(name)
        lines = [_download(each, partial) for each in needed]
        absent = [each for each in missing if not (partial / each).is_file()]
        if absent:
            sources = ", ".join(each.url for each in needed)
            raise _DownloadError(f"{sources} has no {', '.join(absent)}")
        added = {}
        for path in sorted(path for path in partial.rglob("*") if path.is_file()):
            place = folder / path.relative_to(partial)
            if not place.exists():
                added[path.relative_to(partial).as_posix()] = sha256(path)
                place.parent.mkdir(parents=True, exist_ok=True)
                path.rename(place)
    write_checksums(folder, added | read_checksums(folder))
    return lines


def _download(source: Download, folder: Path) -> str:
    """Download one file, or an archive and unpack it; returns a line with its digest.

    pooch compares the published digest, and removes files that differ.
    """
    import pooch

    size = f" ({source.megabytes:,} MB)" if source.megabytes else ""
    print(f"fetching {source.url}{size}", file=sys.stderr, flush=True)
    pooch.get_logger().setLevel("ERROR")
    name = source.file or f"archive.{source.archive}"
    bar: Any = _Bar() if sys.stderr.isatty() else False
    try:
        path = Path(
            pooch.retrieve(
                source.url,
                known_hash=f"md5:{source.md5}" if source.md5 else None,
                fname=name,
                path=folder,
                downloader=pooch.HTTPDownloader(progressbar=bar, timeout=_SILENCE_S),
            )
        )
    except OSError as error:
        raise _DownloadError(f"{source.url} cannot be fetched ({error})") from None
    except ValueError as error:
        raise _DownloadError(f"{source.url}: {error}") from None
    digest = sha256(path)
    if source.archive:
        _unpack(source, path, folder)
    if source.md5:
        return f"{source.url}: MD5 as published ({source.md5})"
    return f"{source.url}: no checksum is published; SHA-256 found: {digest}"


def _unpack(source: Download, path: Path, folder: Path) -> None:
    """Unpack an archive into `folder`, without its leading folders, and remove it."""
    unpacked = folder / ".unpacked"
    safe: dict[str, Any] = {} if source.archive == "zip" else {"filter": "data"}
    kind = "zip" if source.archive == "zip" else "gztar"
    try:
        shutil.unpack_archive(path, unpacked, kind, **safe)
    except Exception as error:
        # A damaged archive fails anywhere in zipfile, tarfile or zlib.
        raise _DownloadError(f"{source.url} sent a damaged archive ({error})") from None
    for found in [found for found in unpacked.rglob("*") if found.is_file()]:
        parts = found.relative_to(unpacked).parts
        place = folder.joinpath(*(parts[source.strip :] or parts[-1:]))
        place.parent.mkdir(parents=True, exist_ok=True)
        found.rename(place)
    shutil.rmtree(unpacked)
    path.unlink()


class _Bar:
    """A progress bar in the form that pooch expects, drawn by rich."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

        columns = (BarColumn(), DownloadColumn(), TimeRemainingColumn())
        self._bars = Progress(*columns, console=Console(stderr=True))
        self._task = self._bars.add_task("", total=None)
        self.total = 0

    def update(self, count: int) -> None:
        self._bars.start()
        self._bars.update(self._task, advance=count, total=self.total or None)

    def reset(self) -> None:
        self._bars.update(self._task, completed=0)

    def close(self) -> None:
        self._bars.stop()
