"""Layer specs: a model's layers in order, with shapes, parameters and costs, before any is built.

They are enough to cut a model into stages on a login node, to check what was built, and to know the
shapes that stages send.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from gnnhpc.core.dataset_sizes import Facts, Kind
from gnnhpc.core.errors import InputError
from gnnhpc.core.settings import Positive, Whole
from gnnhpc.core.versioned_json import build_record

Rows = Literal["same", "hop", "pool"]
"""What a layer does to its rows. `same`: one out for one in. `hop`: a node's output needs its
neighbours' inputs, so a halo chunk loses its outermost zone. `pool`: the nodes of a graph become
one row."""
ROWS_OF: dict[Kind, tuple[Rows, ...]] = {
    "images": ("same",),
    "graph": ("same", "hop"),
    "graphs": ("same", "hop", "pool"),
}
"""What layers may do to the rows of each kind of data."""


@dataclass(frozen=True)
class LayerSpec:
    """One layer before it is built.

    `inputs` and `shape` are a row's (an image's, a node's or a graph's) shape before and after;
    `cost` is relative seconds a row; `parameters` is None where only `build` knows. `kind` and
    `number` are for the model's use in `build`. `group` names the layers whose times are summed (a
    block, the readout); its default is the first part of the layer's name.
    """

    name: str
    inputs: tuple[Positive, ...]
    shape: tuple[Positive, ...]
    kind: str = ""
    rows: Rows = "same"
    parameters: Annotated[Whole, Field(ge=0)] | None = None
    cost: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    group: str = ""
    number: int = 0

    def __post_init__(self) -> None:
        if not self.group:
            object.__setattr__(self, "group", self.name.partition(".")[0])


LayerSpecs = tuple[LayerSpec, ...]


def hops(layers: Iterable[LayerSpec]) -> int:
    """How many hops away a node's output still depends on the graph."""
    return sum(layer.rows == "hop" for layer in layers)


def row_changes(layers: Iterable[LayerSpec]) -> int:
    """How many layers return other rows than they receive."""
    return sum(layer.rows != "same" for layer in layers)


def check_outline(layers: Sequence[LayerSpec], facts: Facts, where: object) -> LayerSpecs:
    """The layers, as a tuple.

    Raises InputError where names, shapes or costs do not make a model of data of these sizes.
    """
    if not layers:
        raise InputError(where, "outline", "no layers", "at least one")
    layers = [_checked_layer(e, facts, where, f"outline.{n}") for n, e in enumerate(layers)]
    images = facts.kind == "images"
    shape: tuple[int, ...] = (facts.features,)
    if images:
        shape = (facts.image_size**2, *shape)
    source = f"a {'picture' if images else 'node'} of the data"
    names, pooling = set[str](), ""
    # A name must not begin another one, as `block` begins `block.ffn`.
    groups = {x.name[:place] for x in layers for place, c in enumerate(x.name) if c == "."}
    for number, layer in enumerate(layers):
        at, name = f"outline.{number}", layer.name
        if layer.inputs != shape:
            allowed = f"{shape}, the shape of {source} before it"
            raise InputError(where, f"{at}.inputs", f"{layer.inputs} in {name}", allowed)
        if name in names or name in groups:
            how = " twice" if name in names else ", which other layers begin with"
            raise InputError(where, f"{at}.name", f"{name!r}{how}", "another name")
        if pooling and layer.rows != "same":
            # Graphs have no neighbours.
            found = f"{layer.rows!r} after {pooling}, which pools"
            raise InputError(where, f"{at}.rows", found, "same")
        pooling = name if layer.rows == "pool" else pooling
        names.add(name)
        shape, source = layer.shape, name
    if shape != (facts.classes,):
        allowed = f"{(facts.classes,)}, the classes of the data"
        raise InputError(where, f"outline.{len(layers) - 1}.shape", f"{shape} in {source}", allowed)
    if facts.kind == "graphs" and not pooling:
        allowed = "one, in which the nodes of a graph become one row"
        raise InputError(where, "outline", "no layer with rows 'pool'", allowed)
    return tuple(layers)


def _checked_layer(layer: object, facts: Facts, where: object, key: str) -> LayerSpec:
    """One layer by itself, each value of the type that it is used as."""
    if not isinstance(layer, LayerSpec):
        raise InputError(where, key, f"a {type(layer).__name__}", "a gnnhpc.Layer")
    checked = build_record(LayerSpec, vars(layer), where, key)
    if not all(name.isidentifier() for name in checked.name.split(".")):
        raise InputError(where, f"{key}.name", repr(checked.name), "names joined by dots")
    if checked.rows not in ROWS_OF[facts.kind]:
        allowed = f"{' or '.join(ROWS_OF[facts.kind])}, for {facts.kind} data"
        raise InputError(where, f"{key}.rows", repr(checked.rows), allowed)
    return checked
