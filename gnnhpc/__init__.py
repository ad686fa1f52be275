"""Measures graph neural networks: layouts, models, data, engines and the worker.

The names below, of which a custom model is made, are imported on first use. All but `Dropout` work
without torch, for login nodes.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gnnhpc.core import VERSION

if TYPE_CHECKING:
    from gnnhpc.core.dataset_sizes import Facts
    from gnnhpc.core.layer_specs import LayerSpec as Layer
    from gnnhpc.models.layers.dropout_layer import Dropout
    from gnnhpc.models.model import BuildOptions, Model

__all__ = ["BuildOptions", "Dropout", "Facts", "Layer", "Model"]
__version__ = VERSION

_DEFINED_IN = {
    "BuildOptions": "models.model:BuildOptions",
    "Dropout": "models.layers.dropout_layer:Dropout",
    "Facts": "core.dataset_sizes:Facts",
    "Layer": "core.layer_specs:LayerSpec",
    "Model": "models.model:Model",
}


def __getattr__(name: str) -> Any:
    if name not in _DEFINED_IN:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = _DEFINED_IN[name].partition(":")
    return getattr(import_module(f"gnnhpc.{module}"), attribute)
