"""The models' names, and the class behind each.

A built-in model is one row of the table; a custom model is named `module:Class`. This file does not
import torch.
"""

from __future__ import annotations

from importlib import import_module

from gnnhpc.core.settings import parse_named
from gnnhpc.models.custom_model import CustomModel, is_custom
from gnnhpc.models.model import Model

BUILT_IN = {
    "vig": "gnnhpc.models.vig.model:Vig",
    "gat": "gnnhpc.models.gat:Gat",
    "gatv2": "gnnhpc.models.gat:Gatv2",
    "resgcn": "gnnhpc.models.deep_gcn:ResGcn",
    "gcnii": "gnnhpc.models.deep_gcn:Gcnii",
    "gcn": "gnnhpc.models.convolutions:Gcn",
    "sage": "gnnhpc.models.convolutions:Sage",
    "gin": "gnnhpc.models.convolutions:Gin",
    "graphconv": "gnnhpc.models.convolutions:GraphConv",
}


def model_class(name: str) -> type[Model] | None:
    """The class behind a name in a spec; None if there is none."""
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].partition(":")
        found: type[Model] = getattr(import_module(module), attribute)
        return found
    return CustomModel if is_custom(name) else None


def allowed_models() -> str:
    """The names that a spec may have, for an error message."""
    return f"{', '.join(sorted(BUILT_IN))}, or a custom model as module:Class"


def parse_model(value: object) -> object:
    """Turn a name or a mapping into the settings of that model, checked; used by pydantic."""
    return parse_named(value, model_class, allowed_models())
