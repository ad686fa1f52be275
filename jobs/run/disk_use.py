"""How much of the disk a folder takes."""

from __future__ import annotations

import os
from pathlib import Path

_BLOCK_BYTES = 512
"""What st_blocks counts, whatever the file system's own blocks are."""


def disk_use(path: Path) -> int | None:
    """Bytes that a file, or a folder and all in it, takes; None where a part is unreadable.

    Symbolic links are not followed; what is deleted meanwhile counts nothing.
    """
    try:
        total = path.lstat().st_blocks * _BLOCK_BYTES
        if path.is_symlink() or not path.is_dir():
            return total
        folders = [str(path)]
        while folders:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    try:
                        total += entry.stat(follow_symlinks=False).st_blocks * _BLOCK_BYTES
                    except FileNotFoundError:
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
    except FileNotFoundError:
        return 0
    except OSError:
        return None
    return total
