"""Downloads of published data sets into a data root, by pooch."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from gnnhpc.core.errors import GnnhpcError, InputError
from gnnhpc.data.data_cache import one_at_a_time
from gnnhpc.data.data_files import Download, record_checksums
from gnnhpc.data.data_settings import Data

_SILENCE_S = 10.0
"""The seconds of waiting for an answer or for more of it."""


def get_data(data: Data, root: Path) -> str:
    """Download the files of a data set that `root` lacks; returns a line that says where they are.

    Raises InputError for data without published files and for a root that cannot be written,
    GnnhpcError where an address fails; then nothing was added.
    """
    files = data.files()
    if files is None or not files.downloads:
        allowed = files.how_to_get(data.name) if files else "one that `gnnhpc data list` can get"
        raise InputError(f"data {data.name}", None, "no files to download", allowed)
    folder = files.directory(root)
    try:
        with one_at_a_time(folder):
            if missing := files.missing(root):
                needed = [each for each in files.downloads if each.archive or each.file in missing]
                _add(needed, folder, missing)
    except _DownloadError as error:
        raise GnnhpcError(
            f"data {data.name}: {error}; nothing was added. Run `gnnhpc data get {data.name}` "
            f"where there is a network, or put the files into {folder}"
        ) from None
    except OSError as error:
        reason = f"{error.strerror or error}: {folder}"
        raise InputError(root, "data root", reason, "a folder that may be written") from None
    return f"{data.name} is here: {folder}"


class _DownloadError(Exception):
    """Why a file could not be downloaded."""


def _add(needed: list[Download], folder: Path, missing: list[str]) -> None:
    """Download into a folder beside `folder`, then move each missing file with one rename."""
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.partial-") as name:
        for download in needed:
            _download(download, Path(name))
        # Archives have their files in a folder, or in none.
        came = list(Path(name).rglob("*"))
        places = {each: [path for path in came if path.match(each)] for each in missing}
        if absent := [each for each, paths in places.items() if not paths]:
            raise _DownloadError(f"{needed[0].url} has no {', '.join(absent)}")
        for each, (path, *_) in places.items():
            (folder / each).parent.mkdir(parents=True, exist_ok=True)
            path.rename(folder / each)
    record_checksums(folder, missing)


def _download(source: Download, folder: Path) -> None:
    """Download one file, or an archive and unpack it.

    pooch compares the published digest, and removes files that differ.
    """
    import pooch

    size = f" ({source.megabytes:,} MB)" if source.megabytes else ""
    print(f"fetching {source.url}{size}", file=sys.stderr, flush=True)
    pooch.get_logger().setLevel("ERROR")
    unpack = {"zip": pooch.Unzip(), "tar.gz": pooch.Untar(), None: None}[source.archive]
    try:
        pooch.retrieve(
            source.url,
            known_hash=f"md5:{source.md5}" if source.md5 else None,
            fname=source.file or f"archive.{source.archive}",
            path=folder,
            processor=unpack,
            downloader=pooch.HTTPDownloader(progressbar=sys.stderr.isatty(), timeout=_SILENCE_S),
        )
    except Exception as error:
        # Networks fail in many ways, and a damaged archive fails anywhere in zipfile or zlib.
        raise _DownloadError(f"{source.url} cannot be fetched ({error})") from None
