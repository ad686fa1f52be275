"""The models' names, and the class behind each.

A built-in model is one row here; a user's own is named `module:Class`. Free of torch.
"""

from __future__ import annotations

from importlib import import_module

from gnnhpc.core.spec_values import parse_named
from gnnhpc.models.own_model import OwnModel, is_own
from gnnhpc.models.protocol import Model

BUILT_IN = {
    "vig": "gnnhpc.models.vig.model:Vig",
    "gat": "gnnhpc.models.gat.model:Gat",
    "gatv2": "gnnhpc.models.gat.model:Gatv2",
    "resgcn": "gnnhpc.models.deep.model:ResGcn",
    "gcnii": "gnnhpc.models.deep.model:Gcnii",
    "gcn": "gnnhpc.models.convolutions.model:Gcn",
    "sage": "gnnhpc.models.convolutions.model:Sage",
    "gin": "gnnhpc.models.convolutions.model:Gin",
    "graphconv": "gnnhpc.models.convolutions.model:GraphConv",
}


def model_class(name: str) -> type[Model] | None:
    """The class behind a name in a spec, or None."""
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].partition(":")
        found: type[Model] = getattr(import_module(module), attribute)
        return found
    return OwnModel if is_own(name) else None


def allowed_models() -> str:
    return f"{', '.join(sorted(BUILT_IN))}, or a model of your own as module:Class"


def parse_model(value: object) -> object:
    """For pydantic: a name or a mapping becomes the settings of that model, checked."""
    return parse_named(value, model_class, allowed_models())
