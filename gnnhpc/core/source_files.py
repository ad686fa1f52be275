"""The files of a folder of sources: those that decide what its code does."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_RUN_FOLDER_FILE = "manifest.jsonl"


def files_below(folder: Path) -> list[Path]:
    """All files of the folder and the folders in it, in a fixed order.

    Left out are hidden files and folders, `__pycache__`, and run folders inside. Raises OSError for
    a folder that cannot be listed.
    """
    return sorted(_walk(folder))


def _walk(folder: Path) -> Iterator[Path]:
    seen: set[Path] = set()
    for place, folders, files in os.walk(folder, onerror=_raise, followlinks=True):
        here = Path(place)
        # A link may lead back to a folder above.
        if here.resolve() in seen:
            folders.clear()
            continue
        seen.add(here.resolve())
        folders[:] = [name for name in folders if not _is_left_out(here / name)]
        yield from (here / f for f in files if not f.startswith(".") and (here / f).is_file())


def _is_left_out(folder: Path) -> bool:
    hidden = folder.name.startswith(".") or folder.name == "__pycache__"
    return hidden or (folder / _RUN_FOLDER_FILE).exists()


def _raise(error: OSError) -> None:
    raise error
