"""The data root: the folder under which published data sets lie. Free of torch."""

from __future__ import annotations

import os
from pathlib import Path

from gnnhpc.core.errors import InputError
from gnnhpc.core.settings import expand_user

ROOT_VARIABLE = "GNNHPC_DATA"
CACHE_VARIABLE = "GNNHPC_CACHE"


def data_root(flag: str | Path | None) -> Path | None:
    """The flag's (or spec's) folder, else $GNNHPC_DATA, else the first default that exists.

    The defaults are ./data and the user's cache. Absolute, so that a job which starts elsewhere
    means the same folder. Whether a named folder exists is for a data set's `check` to say.
    """
    named = flag or os.environ.get(ROOT_VARIABLE)
    if named:
        return expand_user(named, "data root").absolute()
    return next((folder for folder in default_roots() if folder.is_dir()), None)


def root_to_fill(flag: str | Path | None) -> Path:
    """Where a download goes: as `data_root`, else the user's cache, there or not."""
    return data_root(flag) or default_roots()[-1]


def default_roots() -> tuple[Path, ...]:
    """Where data are looked for when nobody says where they lie, in this order."""
    return Path("data").absolute(), cache_root() / "data"


def cache_root() -> Path:
    """Where loaded graphs are kept: $GNNHPC_CACHE, else the user's own cache folder."""
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return expand_user(named, "environment", CACHE_VARIABLE).absolute()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return expand_user(base, "cache folder").absolute() / "gnnhpc"


def existing_root(name: str, root: Path | None) -> Path:
    """`root`, or InputError where there is none for the data set `name`."""
    if root is None:
        raise InputError(f"data {name}", "data root", "none", how_to_have(name))
    if not (os.access(root, os.R_OK | os.X_OK) and root.is_dir()):
        raise InputError(root, "data root", absence(root, "folder"), how_to_have(name))
    return root


def how_to_have(name: str) -> str:
    """Every place where a data root is looked for, and the command that gets this data set."""
    defaults = " or ".join(_shown(folder) for folder in default_roots())
    named = f"a data root by --data-root, data_root in the spec, or ${ROOT_VARIABLE}"
    return f"{named}, else {defaults}, which `gnnhpc data get {name}` makes"


def _shown(folder: Path) -> str:
    """A path as people write it."""
    for base, word in ((Path.cwd(), "."), (Path.home(), "~")):
        if folder.is_relative_to(base):
            return f"{word}/{folder.relative_to(base)}"
    return str(folder)


def absence(path: Path, kind: str) -> str:
    """Why `path` cannot be read."""
    there = os.access(path, os.F_OK)
    return f"no {kind} that may be read" if there else f"no such {kind}"
