"""A model on paper: its layers in order, with shapes, parameters and costs, before any is built.

Enough to cut a model into stages on a login node, to check what was built, and to know the shapes
that are sent between stages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from gnnhpc.core.errors import InputError

Rows = Literal["same", "hop", "pool"]
"""What a layer does to its rows. `same`: one out for one in. `hop`: a node's output needs its
neighbours' inputs, so a halo chunk loses its outermost zone. `pool`: many nodes become one row."""


@dataclass(frozen=True)
class LayerOutline:
    """One layer on paper.

    `inputs` and `shape` are a row's (an image's or a node's) shape before and after; `cost` is
    relative seconds a row; `parameters` None where only building tells. `kind` and `number` are
    for the model's own use in `build`; `group` names the layers whose times are summed (a block,
    the readout), by default the first part of the layer's name.
    """

    name: str
    inputs: tuple[int, ...]
    shape: tuple[int, ...]
    kind: str = ""
    rows: Rows = "same"
    parameters: int | None = None
    cost: float = 1.0
    group: str = ""
    number: int = 0

    def __post_init__(self) -> None:
        if not self.group:
            object.__setattr__(self, "group", self.name.partition(".")[0])


Outlines = tuple[LayerOutline, ...]


def hops(layers: Iterable[LayerOutline]) -> int:
    """How many hops away a node's output still depends on the graph."""
    return sum(layer.rows == "hop" for layer in layers)


def parameter_count(layers: Sequence[LayerOutline]) -> int | None:
    """The whole model's number of parameters; None if a layer does not give its own."""
    counts = [layer.parameters for layer in layers]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def check_outline(layers: Sequence[LayerOutline], where: object) -> Outlines:
    """The layers, as a tuple; raises InputError if names, shapes or costs do not make a model."""
    if not layers:
        raise InputError(where, "outline", "no layers", "at least one")
    for number, layer in enumerate(layers):
        key = f"outline.{number}"
        if not isinstance(layer, LayerOutline):
            raise InputError(where, key, f"a {type(layer).__name__}", "a gnnhpc.Layer")
        if not layer.name or any(not part.isidentifier() for part in layer.name.split(".")):
            raise InputError(where, f"{key}.name", repr(layer.name), "names joined by dots")
        if layer.rows not in get_args(Rows):
            raise InputError(where, f"{key}.rows", repr(layer.rows), ", ".join(get_args(Rows)))
        if not layer.cost > 0:
            raise InputError(where, f"{key}.cost", layer.cost, "more than 0")
        if number and layer.inputs != layers[number - 1].shape:
            raise InputError(
                where,
                f"{key}.inputs",
                f"{layer.inputs} in {layer.name}",
                f"{layers[number - 1].shape}, the shape of {layers[number - 1].name} before it",
            )
    names = [layer.name for layer in layers]
    for number, name in enumerate(names):
        if name in names[:number]:
            raise InputError(
                where, f"outline.{number}.name", f"{name!r} twice", "a name of its own"
            )
        if any(other.startswith(f"{name}.") for other in names):
            raise InputError(
                where,
                f"outline.{number}.name",
                f"{name!r}, which other layers begin with",
                "a name of its own",
            )
    return tuple(layers)
