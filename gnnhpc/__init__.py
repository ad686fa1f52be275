"""Measures graph neural networks: layouts, models, data, engines and the worker.

The names below are imported on first use. All but `Dropout` work without torch, for login nodes. A
custom model uses `Model`, `Layer`, `Facts`, `BuildOptions` and `Dropout`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gnnhpc.core import VERSION

if TYPE_CHECKING:
    from gnnhpc.core.dataset_sizes import Facts
    from gnnhpc.core.errors import GnnhpcError, InputError
    from gnnhpc.core.layer_specs import LayerSpec as Layer
    from gnnhpc.core.layout import Layout
    from gnnhpc.core.run_paths import RunPaths
    from gnnhpc.experiment.experiment import Experiment
    from gnnhpc.experiment.manifest import Cell, read_manifest
    from gnnhpc.models.layers.dropout import Dropout
    from gnnhpc.models.model import BuildOptions, Model

__all__ = [
    "BuildOptions",
    "Cell",
    "Dropout",
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
__version__ = VERSION

_DEFINED_IN = {
    "BuildOptions": "models.model:BuildOptions",
    "Cell": "experiment.manifest:Cell",
    "Dropout": "models.layers.dropout:Dropout",
    "Experiment": "experiment.experiment:Experiment",
    "Facts": "core.dataset_sizes:Facts",
    "GnnhpcError": "core.errors:GnnhpcError",
    "InputError": "core.errors:InputError",
    "Layer": "core.layer_specs:LayerSpec",
    "Layout": "core.layout:Layout",
    "Model": "models.model:Model",
    "RunPaths": "core.run_paths:RunPaths",
    "read_manifest": "experiment.manifest:read_manifest",
}


def __getattr__(name: str) -> Any:
    if name not in _DEFINED_IN:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = _DEFINED_IN[name].partition(":")
    return getattr(import_module(f"gnnhpc.{module}"), attribute)
