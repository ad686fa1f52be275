"""Where the files of CIFAR-10 lie, in its two published layouts. Free of torch.

A. Krizhevsky, *Learning Multiple Layers of Features from Tiny Images* (2009);
https://www.cs.toronto.edu/~kriz/cifar.html publishes the archive and its MD5.
"""

from __future__ import annotations

import os
from pathlib import Path

from gnnhpc.core.errors import InputError
from gnnhpc.data.files import Download, Files

CIFAR_FOLDERS = {"binary": "cifar-10-batches-bin", "python": "cifar-10-batches-py"}
ARCHIVE = Download(
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    archive="tar.gz",
    strip=1,
    md5="c32a1d4ab5d03f1284b67883e8d87530",
    megabytes=162,
)


def published_files(root: Path | None = None) -> Files:
    """The binary layout, which is the one that is downloaded, unless `root` has the other."""
    layout = "binary"
    if root and not (root / CIFAR_FOLDERS["binary"]).is_dir():
        layout = "python" if (root / CIFAR_FOLDERS["python"]).is_dir() else "binary"
    folder = Path(CIFAR_FOLDERS[layout])
    paths = cifar_paths(folder, "train") + cifar_paths(folder, "test")
    return Files(str(folder), tuple(path.name for path in paths), (ARCHIVE,))


def check_cifar(root: Path) -> None:
    """Raises InputError if CIFAR-10 is neither under `root` nor can be downloaded into it."""
    folders = [root / name for name in CIFAR_FOLDERS.values()]
    present = [folder for folder in folders if folder.is_dir()]
    if present:
        if not any(cifar_files(folder, "train") for folder in present):
            first = cifar_paths(present[0], "train")[0]
            raise InputError(first, None, "no such file", "CIFAR-10 as published")
    elif not os.access(root, os.W_OK):
        raise InputError(
            folders[0],
            None,
            "no such folder, and the data root is read-only",
            "CIFAR-10 unpacked there, or a data root that may be written, to download it",
        )


def cifar_files(folder: Path, split: str) -> list[Path]:
    """The batch files of a split that are there, in order."""
    return [path for path in cifar_paths(folder, split) if path.is_file()]


def cifar_paths(folder: Path, split: str) -> list[Path]:
    """The batch files of a split as published; the folder's name says which layout."""
    suffix = ".bin" if folder.name == CIFAR_FOLDERS["binary"] else ""
    names = [f"data_batch_{n}" for n in range(1, 6)] if split == "train" else ["test_batch"]
    return [folder / f"{name}{suffix}" for name in names]
