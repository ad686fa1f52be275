"""Graphs read or made once, then kept as arrays: later starts import no PyG at all."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import secrets
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from gnnhpc.data.fetch.atomic_folder import publishing
from gnnhpc.data.roots import cache_root
from gnnhpc.data.settings import Data

log = logging.getLogger(__name__)

Arrays = dict[str, npt.NDArray[Any]]
CACHE_VERSION = 3
_CONTENTS = "arrays.json"
_WORK = "work"
_LARGE = 1 << 24


Build = Callable[[Any, list[Path], Path], Arrays]
"""Makes a graph's arrays from its settings and raw files, working in a new folder."""


def load_or_build(config: Data, raw: list[Path], build: Build, made_by: str = "") -> Arrays:
    """The arrays of a graph, from the cache or, once, from `build`.

    `made_by` tells apart the code that makes a graph without raw files.

    One process builds while others wait. Without a place to keep it the graph is built anew and
    held in memory. Raises InputError for damaged raw files.
    """
    target = cache_root() / f"{config.name}-{_key(config, raw, made_by)}"
    if target.is_dir():
        try:
            return _read(target)
        except (OSError, ValueError, EOFError) as error:
            log.warning("%s is damaged (%s) and is built again", target, error)
            _set_aside(target)
    try:
        with publishing(target) as temporary:
            if temporary is not None:
                _keep(build(config, raw, temporary / _WORK), temporary)
        return _read(target)
    except OSError as error:
        log.warning("%s cannot be kept (%s)", target, error)
    with tempfile.TemporaryDirectory(prefix="gnnhpc-") as name:
        _keep(build(config, raw, Path(name) / _WORK), Path(name))
        return _read(Path(name), mapped=False)


def _set_aside(target: Path) -> None:
    """Take a folder away at once, so that no other rank reads half of it."""
    aside = target.with_name(f".{target.name}.damaged-{secrets.token_hex(6)}")
    with contextlib.suppress(OSError):
        target.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)


def _key(config: Data, raw: list[Path], made_by: str) -> str:
    """What decides the content: which files, how large, when last changed, what is read of them."""
    stats = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in raw]
    # How features are kept changes no other array, and `made_by` tells it.
    parts = [CACHE_VERSION, config.model_dump(mode="json", exclude={"storage"}), stats]
    text = json.dumps([*parts, made_by] if made_by else parts)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _keep(arrays: Arrays, folder: Path) -> None:
    shutil.rmtree(folder / _WORK, ignore_errors=True)
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array, allow_pickle=False)
    (folder / _CONTENTS).write_text(json.dumps(sorted(arrays)))


def _read(folder: Path, *, mapped: bool = True) -> Arrays:
    names = json.loads((folder / _CONTENTS).read_text())
    return {name: _read_array(folder / f"{name}.npy", mapped) for name in names}


def _read_array(path: Path, mapped: bool) -> npt.NDArray[Any]:
    """Large arrays are mapped copy on write: ranks share the pages and none can change them."""
    large = path.stat().st_size >= _LARGE
    mode: Literal["c"] | None = "c" if mapped and large else None
    array: npt.NDArray[Any] = np.load(path, mmap_mode=mode, allow_pickle=False)
    return array.view(np.ndarray)
