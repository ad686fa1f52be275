"""The user's cache: graphs that were read or made once, as arrays that all ranks map."""

from __future__ import annotations

import contextlib
import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import filelock
import numpy as np

from gnnhpc.core.errors import InputError
from gnnhpc.data.data_files import CACHE_VARIABLE, cache_root
from gnnhpc.data.data_settings import Data
from gnnhpc.data.edges_and_splits import Arrays

CACHE_VERSION = 5
"""Part of every key. A higher number makes all graphs anew: raise it with a generator's change."""


@contextlib.contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """Let one process at a time make `path`; where there are no locks, several may."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(path.with_name(f".{path.name}.lock"))
    with contextlib.suppress(NotImplementedError):
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def load_or_build(config: Data, raw: list[Path], build: Callable[[Path], Arrays]) -> Arrays:
    """The arrays of a data set from the cache or, once, from `build`, which gets a new folder.

    The key has the settings and the names, sizes and times of the raw files. One process builds
    while others wait. Raises InputError where the cache cannot be written.
    """
    stats = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in raw]
    text = json.dumps([CACHE_VERSION, config.model_dump(mode="json"), stats])
    target = cache_root() / f"{config.name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    try:
        if not target.is_dir():
            with one_at_a_time(target):
                if not target.is_dir():
                    _write(build, target)
        # Mapped copy on write: ranks share the pages of an array and none can change them.
        maps = {path.stem: np.load(path, mmap_mode="c") for path in target.glob("*.npy")}
        return {name: array.view(np.ndarray) for name, array in maps.items()}
    except OSError as error:
        allowed = f"a folder that may be written, named by ${CACHE_VARIABLE}"
        raise InputError(cache_root(), "cache", error.strerror or str(error), allowed) from error


def _write(build: Callable[[Path], Arrays], target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".partial-") as name:
        whole = Path(name, "whole")
        whole.mkdir()
        for key, array in build(Path(name, "work")).items():
            np.save(whole / f"{key}.npy", array, allow_pickle=False)
        # Another process may have been faster where there are no locks.
        with contextlib.suppress(OSError):
            whole.rename(target)
