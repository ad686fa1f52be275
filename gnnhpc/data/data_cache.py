"""The user's cache: graphs that were read or made once, as arrays that all ranks map."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import filelock
import numpy as np
import numpy.typing as npt

from gnnhpc.data.data_files import cache_root
from gnnhpc.data.data_settings import Data

log = logging.getLogger(__name__)

CACHE_VERSION = 4
"""Part of every key: a higher number makes all graphs anew."""
Arrays = dict[str, npt.NDArray[Any]]
Build = Callable[[Any, list[Path], Path], Arrays]
"""Makes a graph's arrays from its settings and raw files, working in a new folder."""

_CONTENTS = "arrays.json"
_LARGE = 1 << 24


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


def load_or_build(config: Data, raw: list[Path], build: Build, made_by: str = "") -> Arrays:
    """The arrays of a graph, from the cache or, once, from `build`.

    `made_by` names the code that makes a graph without raw files. One process builds while others
    wait. Where nothing can be written, the graph is built in memory. Raises InputError for damaged
    raw files.
    """
    target = cache_root() / f"{config.name}-{_key(config, raw, made_by)}"
    if target.is_dir():
        try:
            return _read(target)
        except (OSError, ValueError, EOFError) as error:
            log.warning("%s is damaged (%s) and is built again", target, error)
            shutil.rmtree(target, ignore_errors=True)
    try:
        with one_at_a_time(target):
            if not target.is_dir():
                with tempfile.TemporaryDirectory(dir=target.parent, prefix=".partial-") as name:
                    whole = Path(name) / "whole"
                    _write(build(config, raw, Path(name) / "work"), whole)
                    # Another process may have been faster where there are no locks.
                    with contextlib.suppress(OSError):
                        whole.rename(target)
        return _read(target)
    except OSError as error:
        log.warning("%s cannot be written (%s)", target, error)
    with tempfile.TemporaryDirectory(prefix="gnnhpc-") as name:
        return build(config, raw, Path(name) / "work")


def _key(config: Data, raw: list[Path], made_by: str) -> str:
    """A digest of the settings, and of the names, sizes and times of the raw files."""
    stats = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in raw]
    # The precision of storage changes no other array; `made_by` names it.
    settings = config.model_dump(mode="json", exclude={"storage"})
    text = json.dumps([CACHE_VERSION, settings, stats, made_by])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _write(arrays: Arrays, folder: Path) -> None:
    folder.mkdir()
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array, allow_pickle=False)
    (folder / _CONTENTS).write_text(json.dumps(sorted(arrays)))


def _read(folder: Path) -> Arrays:
    names = json.loads((folder / _CONTENTS).read_text())
    return {name: _read_array(folder / f"{name}.npy") for name in names}


def _read_array(path: Path) -> npt.NDArray[Any]:
    """Large arrays are mapped copy on write: ranks share the pages and none can change them."""
    mode: Literal["c"] | None = "c" if path.stat().st_size >= _LARGE else None
    array: npt.NDArray[Any] = np.load(path, mmap_mode=mode, allow_pickle=False)
    return array.view(np.ndarray)
