"""Measures graph neural networks: layouts, models, data, engines and the worker.

The names below load on first use and are free of torch, so that a login node pays for what it asks.
`Model`, `Layer`, `Facts` and `BuildOptions` are what a model of one's own is written with.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gnnhpc.core.errors import GnnhpcError, InputError
    from gnnhpc.core.facts import Facts
    from gnnhpc.core.layout import Layout
    from gnnhpc.core.outline import LayerOutline as Layer
    from gnnhpc.models.protocol import BuildOptions, Model
    from gnnhpc.records.paths import RunPaths
    from gnnhpc.spec.experiment import Experiment
    from gnnhpc.spec.manifest import Cell, read_manifest

__all__ = [
    "BuildOptions",
    "Cell",
    "Experiment",
    "Facts",
    "GnnhpcError",
    "InputError",
    "Layer",
    "Layout",
    "Model",
    "RunPaths",
    "read_manifest",
]
__version__ = "0.1.0"

_HOME = {
    "BuildOptions": "models.protocol:BuildOptions",
    "Cell": "spec.manifest:Cell",
    "Experiment": "spec.experiment:Experiment",
    "Facts": "core.facts:Facts",
    "GnnhpcError": "core.errors:GnnhpcError",
    "InputError": "core.errors:InputError",
    "Layer": "core.outline:LayerOutline",
    "Layout": "core.layout:Layout",
    "Model": "models.protocol:Model",
    "RunPaths": "records.paths:RunPaths",
    "read_manifest": "spec.manifest:read_manifest",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = _HOME[name].partition(":")
    return getattr(import_module(f"gnnhpc.{module}"), attribute)
