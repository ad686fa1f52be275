"""The record of what was downloaded: a file that `sha256sum -c` reads too."""

from __future__ import annotations

from pathlib import Path

from gnnhpc.data.files import sha256

NAME = "SHA256SUMS"


def read_checksums(folder: Path) -> dict[str, str]:
    """File, seen from `folder`, to its SHA-256; empty where nothing was recorded."""
    try:
        lines = (folder / NAME).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return {}
    pairs = (line.split("  ", 1) for line in lines if "  " in line)
    return {name: digest for digest, name in pairs}


def write_checksums(folder: Path, sums: dict[str, str]) -> None:
    lines = (f"{digest}  {name}\n" for name, digest in sorted(sums.items()))
    partial = folder / f".{NAME}.partial"
    partial.write_text("".join(lines), encoding="utf-8")
    partial.replace(folder / NAME)


def changed_files(folder: Path) -> list[str]:
    """The recorded files that are there with another content."""
    known = read_checksums(folder)
    return [
        name
        for name, digest in known.items()
        if (folder / name).is_file() and sha256(folder / name) != digest
    ]
