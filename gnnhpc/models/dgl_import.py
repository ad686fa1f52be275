"""Imports DGL, an extra: on its backend for torch, without writing to the user's home."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import types
from typing import Any

from gnnhpc.core.errors import InputError

WANTED = "1.1.3"
"""Later versions have no package that imports with today's torch."""


def check_dgl_is_here(where: str = "model", key: str = "implementation") -> None:
    """Raises InputError where it is not installed; imports nothing.

    `where` and `key` are what asked for it.
    """
    if importlib.util.find_spec("dgl") is None:
        raise _missing(where, key, "dgl, which is not installed")


def import_dgl(where: str = "model", key: str = "implementation") -> Any:
    """The module; raises InputError where it is not installed, of another version or broken."""
    os.environ.setdefault("DGLBACKEND", "pytorch")
    _give_setuptools_its_packaging()
    try:
        dgl = importlib.import_module("dgl")
    except ModuleNotFoundError as error:
        if error.name != "dgl":
            raise _missing(where, key, f"DGL, which cannot be imported ({error})") from None
        raise _missing(where, key, "dgl, which is not installed") from None
    except (ImportError, OSError) as error:
        raise _missing(where, key, f"DGL, which cannot be imported ({error})") from None
    if dgl.__version__.partition("+")[0] != WANTED:
        raise _missing(where, key, f"DGL {dgl.__version__}")
    return dgl


def _missing(where: str, key: str, found: str) -> InputError:
    return InputError(
        where,
        key,
        found,
        f"DGL {WANTED}: make setup-dgl, or pip install 'gnnhpc[dgl]'",
    )


def _give_setuptools_its_packaging() -> None:
    """DGL 1.1.3 asks for a copy of `packaging` that setuptools has had no more since 71."""
    name = "setuptools.extern"
    if name in sys.modules:
        return
    try:
        importlib.import_module(name)
    except ImportError:
        packaging = importlib.import_module("packaging")
        version = importlib.import_module("packaging.version")
        extern = types.ModuleType(name)
        extern.__dict__["packaging"] = packaging
        sys.modules |= {name: extern, f"{name}.packaging": packaging}
        sys.modules[f"{name}.packaging.version"] = version
