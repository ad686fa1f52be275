"""One file or archive from its official address, checked before anything of it is used."""

from __future__ import annotations

import hashlib
import http.client
import logging
import shutil
import tarfile
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from gnnhpc.data.files import Download

log = logging.getLogger(__name__)

_BLOCK = 1 << 20
_SILENCE_S = 10.0

Progress = Callable[[int, int | None], None]
"""Told how many bytes have come, and of how many, where the address says so."""


class DownloadError(Exception):
    """Why the file could not be had; a caller says what to do about it."""


def download(wanted: Download, folder: Path, progress: Progress | None = None) -> str:
    """Fetch `wanted` into `folder`, unpacked there if it is an archive; returns its SHA-256.

    Raises DownloadError if the address cannot be reached, falls silent for ten seconds, ends
    early, or what it sends has another checksum than the published one; OSError where nothing can
    be written.
    """
    target = folder / (wanted.file or f"archive.{wanted.archive}")
    target.parent.mkdir(parents=True, exist_ok=True)
    log.info("fetching %s", wanted.url)
    md5, sha256 = _fetch(wanted.url, target, progress)
    if wanted.md5 and md5 != wanted.md5:
        raise DownloadError(f"{wanted.url} sent MD5 {md5}, published is {wanted.md5}")
    if wanted.archive:
        unpack = _unpack_zip if wanted.archive == "zip" else _unpack_tar
        try:
            unpack(target, folder, wanted.strip)
        except (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error) as error:
            raise DownloadError(f"{wanted.url} sent a damaged archive ({error})") from None
        target.unlink()
    return sha256


def _fetch(url: str, target: Path, progress: Progress | None) -> tuple[str, str]:
    """Write what `url` sends to `target`; returns its MD5 and its SHA-256."""
    md5, sha256 = hashlib.md5(usedforsecurity=False), hashlib.sha256()
    with target.open("wb") as stream:
        for block, total in _blocks(url):
            md5.update(block)
            sha256.update(block)
            stream.write(block)
            if progress:
                progress(stream.tell(), total)
    return md5.hexdigest(), sha256.hexdigest()


def _blocks(url: str) -> Iterator[tuple[bytes, int | None]]:
    """Pieces of what an address sends, each with the length of the whole."""
    try:
        with urllib.request.urlopen(url, timeout=_SILENCE_S) as answer:
            length = answer.headers.get("Content-Length")
            total, done = int(length) if length else None, 0
            while block := answer.read(_BLOCK):
                done += len(block)
                yield block, total
    except (OSError, http.client.HTTPException) as error:
        raise DownloadError(f"{url} cannot be reached ({error})") from None
    if total is not None and done < total:
        raise DownloadError(f"{url} ended after {done} of {total} bytes")


def _unpack_tar(packed: Path, folder: Path, strip: int) -> None:
    with tarfile.open(packed, "r:gz") as archive:
        for member in archive:
            content = archive.extractfile(member) if member.isfile() else None
            if content:
                _place(content, member.name, folder, strip)


def _unpack_zip(packed: Path, folder: Path, strip: int) -> None:
    with zipfile.ZipFile(packed) as archive:
        for member in archive.infolist():
            if not member.is_dir():
                with archive.open(member) as content:
                    _place(content, member.filename, folder, strip)


def _place(content: IO[bytes], name: str, folder: Path, strip: int) -> None:
    """Plain files only, each under `folder` whatever its name says."""
    parts = [part for part in PurePosixPath(name).parts if part not in ("/", "..", ".")]
    target = folder.joinpath(*(parts[strip:] or parts[-1:]))
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as stream:
        shutil.copyfileobj(content, stream, _BLOCK)
