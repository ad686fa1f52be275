"""Where data sets lie, and whether one can be there: all that is asked before a job starts."""

from __future__ import annotations

import os
from pathlib import Path

from gnnhpc.core.errors import InputError
from gnnhpc.data.published import PublishedGraph
from gnnhpc.data.settings import Cifar10, Data

ROOT_VARIABLE = "GNNHPC_DATA"
CACHE_VARIABLE = "GNNHPC_CACHE"
HOW_TO_NAME_ROOT = f"a data root by --data-root, data_root in the spec, or ${ROOT_VARIABLE}"

CIFAR_FOLDERS = {"binary": "cifar-10-batches-bin", "python": "cifar-10-batches-py"}


def data_root(flag: str | None) -> Path | None:
    """The flag's (or spec's) folder, else $GNNHPC_DATA, else ./data if it exists, else None.

    Absolute, so that a job which starts elsewhere means the same folder. Whether a named folder
    exists is for `check_data` to say.
    """
    named = flag or os.environ.get(ROOT_VARIABLE)
    if named:
        return Path(named).expanduser().absolute()
    default = Path("data").absolute()
    return default if default.is_dir() else None


def cache_root() -> Path:
    """Where loaded graphs are kept: $GNNHPC_CACHE, else the user's own cache folder."""
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser().absolute() / "gnnhpc"


def check_data(config: Data, root: Path | None) -> None:
    """Whether this data set can be there, seen from a login node: no file is opened.

    Raises InputError if there is no root, the root is missing, or a file of the data set is
    missing that will not be downloaded. CIFAR-10 is downloaded into a root that may be written.
    """
    if isinstance(config, Cifar10):
        check_cifar(existing_root(config, root))
    elif isinstance(config, PublishedGraph):
        check_raw(config, existing_root(config, root))


def existing_root(config: Data, root: Path | None) -> Path:
    """`root`, or InputError where there is none."""
    if root is None:
        raise InputError(f"data {config.name}", "data root", "none", HOW_TO_NAME_ROOT)
    if not (os.access(root, os.R_OK | os.X_OK) and root.is_dir()):
        raise InputError(root, "data root", _absence(root, "folder"), HOW_TO_NAME_ROOT)
    return root


def _absence(path: Path, kind: str) -> str:
    """Why `path` cannot be read."""
    there = os.access(path, os.F_OK)
    return f"no {kind} that may be read" if there else f"no such {kind}"


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


def check_raw(config: PublishedGraph, root: Path) -> list[Path]:
    """The raw files of a graph, in a fixed order; raises InputError naming a missing one."""
    raw = config.published
    paths = [raw.directory(root) / name for name in raw.needed(config.features)]
    for path in paths:
        if not os.access(path, os.R_OK):
            allowed = f"the file as published at {raw.source}"
            if config.features == "real" and path.name not in raw.needed("made"):
                allowed += ", or features: made, to time without real features"
            raise InputError(path, None, _absence(path, "file"), allowed)
    return paths
