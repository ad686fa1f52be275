"""Libraries that a user may not have installed: DGL, and the samplers behind PyG's loader."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import types
from typing import Any

from gnnhpc.core.errors import InputError

DGL_VERSION = "1.1.3"
"""Later versions have no package that imports with today's torch."""
SAMPLER_KEY = ("sampling", "sampler")
"""The key by which an experiment names its sampler."""
PYG_SAMPLERS = ("pyg_lib", "torch_sparse")
"""Either of them has the compiled sampler behind PyG's NeighborLoader."""


def check_dgl_is_here(where: str = "model", key: str = "implementation") -> None:
    """Raise InputError where DGL is not installed; import nothing.

    `where` and `key` name the setting that needs it.
    """
    if importlib.util.find_spec("dgl") is None:
        raise _missing(where, key, "dgl, which is not installed")


def import_dgl(where: str = "model", key: str = "implementation") -> Any:
    """DGL on its backend for torch, without writing to the user's home.

    Raises InputError where it is not installed, broken, or of another version.
    """
    os.environ.setdefault("DGLBACKEND", "pytorch")
    _give_setuptools_its_packaging()
    try:
        dgl = importlib.import_module("dgl")
    except (ImportError, OSError) as error:
        raise _missing(where, key, f"DGL, which cannot be imported ({error})") from None
    if dgl.__version__.partition("+")[0] != DGL_VERSION:
        raise _missing(where, key, f"DGL {dgl.__version__}")
    return dgl


def dgl_has_cuda() -> bool:
    """Whether DGL computes on GPUs, which its wheels on PyPI do not."""
    return bool(import_dgl().ndarray.gpu(0).exist)


def _missing(where: str, key: str, found: str) -> InputError:
    return InputError(
        where,
        key,
        found,
        f"DGL {DGL_VERSION}: make setup-dgl, or pip install 'gnnhpc[dgl]'",
    )


def _give_setuptools_its_packaging() -> None:
    """Provide the copy of `packaging` that DGL 1.1.3 imports from setuptools before version 71."""
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


def check_sampler_is_here(sampler: str) -> None:
    """Raise InputError where the library of `pyg` or `dgl` is not installed; `ours` needs none."""
    if sampler == "dgl":
        check_dgl_is_here(*SAMPLER_KEY)
    if sampler == "pyg" and not any(map(importlib.util.find_spec, PYG_SAMPLERS)):
        raise pyg_sampler_missing("is not installed")


def pyg_sampler_missing(why: str) -> InputError:
    """The error for a sampler of PyG's whose library cannot be used."""
    return InputError(
        *SAMPLER_KEY,
        f"pyg, whose torch-sparse or pyg-lib {why}",
        "one of them: make setup-pyg-sampler",
    )
