"""One archive from its official address, checked before anything of it is used."""

from __future__ import annotations

import hashlib
import logging
import tarfile
import urllib.request
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger(__name__)

_BLOCK = 1 << 20
_SILENCE_S = 10.0


class DownloadError(Exception):
    """Why the archive could not be had; a caller says what to do about it."""


@dataclass(frozen=True)
class Archive:
    """A published .tar.gz: its address, its published MD5, and about how large it is."""

    url: str
    md5: str
    megabytes: int


def download(archive: Archive, folder: Path) -> None:
    """Fetch `archive` and unpack its plain files, without their folders, into `folder`.

    Raises DownloadError if the address cannot be reached, falls silent for ten seconds, or what
    it sends has another checksum than the published one; OSError where nothing can be written.
    """
    packed = folder / "archive.tar.gz"
    log.info("fetching %s (%d MB)", archive.url, archive.megabytes)
    found = _fetch(archive.url, packed)
    if found != archive.md5:
        raise DownloadError(f"{archive.url} sent MD5 {found}, published is {archive.md5}")
    try:
        _unpack(packed, folder)
    except (tarfile.TarError, EOFError) as error:
        raise DownloadError(f"{archive.url} sent a damaged archive ({error})") from None
    packed.unlink()


def _fetch(url: str, target: Path) -> str:
    """Write what `url` sends to `target`; returns its MD5, as the data set's page gives it."""
    digest = hashlib.md5(usedforsecurity=False)
    with target.open("wb") as stream:
        try:
            with urllib.request.urlopen(url, timeout=_SILENCE_S) as answer:
                while block := answer.read(_BLOCK):
                    digest.update(block)
                    stream.write(block)
        except OSError as error:
            raise DownloadError(f"{url} cannot be reached ({error})") from None
    return digest.hexdigest()


def _unpack(packed: Path, folder: Path) -> None:
    with tarfile.open(packed, "r:gz") as archive:
        for member in archive:
            if member.isfile():
                member.name = Path(member.name).name
                archive.extract(member, folder, filter="data")
