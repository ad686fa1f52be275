"""Layouts, models, data, engines and the worker of the gnnhpc suite.

The names below are free of torch and load on first use, so that a login node pays for what it asks.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gnnhpc.core.errors import GnnhpcError, InputError
    from gnnhpc.core.layout import Layout
    from gnnhpc.records.paths import RunPaths
    from gnnhpc.spec.experiment import Experiment
    from gnnhpc.spec.manifest import Cell, read_manifest

__all__ = ["Cell", "Experiment", "GnnhpcError", "InputError", "Layout", "RunPaths", "read_manifest"]
__version__ = "0.1.0"

_HOME = {
    "Cell": "spec.manifest",
    "Experiment": "spec.experiment",
    "GnnhpcError": "core.errors",
    "InputError": "core.errors",
    "Layout": "core.layout",
    "RunPaths": "records.paths",
    "read_manifest": "spec.manifest",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"gnnhpc.{_HOME[name]}"), name)
