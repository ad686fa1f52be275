"""A sweep spec: YAML with defaults and grids, which expand to a list of experiments.

name: raffi-vig
description: ViG on CIFAR-10
defaults:                 any field of an experiment
  batch_size: 1000
grids:                    each overrides the defaults; lists are multiplied
  - models: [vig]
    data: [cifar10]
    layouts: [seq, pp2, dp2-pp2]
    microbatches: [5, 10]
    repeats: 3
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Field, create_model
from pydantic.json_schema import WithJsonSchema

from gnnhpc.core.settings import Positive, Strict
from gnnhpc.experiment.experiment import Experiment

AXES = {
    "model": "models",
    "data": "data",
    "layout": "layouts",
    "microbatches": "microbatches",
    "schedule": "schedules",
    "virtual_stages": "virtual_stages",
    "seed": "seeds",
    "chunks": "chunks",
    "batch_size": "batch_size",
    "sampling": "sampling",
    "compile": "compile",
}
"""Field of an experiment -> key of a grid that takes one value or a list of them."""
NAMED = ("model", "data", "layout")
"""Fields whose JSON Schema `sweep_schema` writes, since it depends on the registries."""
MERGED = ("optimizer", "sampling")
"""Settings of a grid that are merged into those of the defaults instead of replacing them."""
MOST_CELLS = 100_000
"""The most cells of a sweep: each is a line of the manifest and a folder."""

Settings = dict[str, Any]


def _one_or_more(kind: Any) -> Any:
    """The type of a list, which a spec may write as its only value."""
    several = Annotated[list[kind], Field(min_length=1)]
    as_list = BeforeValidator(_as_list, json_schema_input_type=kind | several)
    return Annotated[list[kind], Field(min_length=1), as_list]


def _as_list(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


class _Grid(Strict):
    """Fields of experiments; a key of an axis takes one value or a list of values."""

    repeats: Annotated[int, Field(strict=True, ge=1, le=MOST_CELLS)] = 1
    """Measurements of each cell, from which intervals are computed; see seeds for other random
    numbers."""
    seq_microbatches: _one_or_more(Positive) = Field(default=[1])  # type: ignore[valid-type]
    """Micro-batches of layout seq; the default is 1 and those of the other layouts."""

    def set_keys(self) -> dict[str, Any]:
        """The keys that were set, with their checked values."""
        return {name: getattr(self, name) for name in self.model_fields_set}


def _grid_fields() -> dict[str, Any]:
    """A grid's field for each field of an experiment, without its default."""
    found: dict[str, Any] = {}
    for name, field in Experiment.model_fields.items():
        if name == "repeat":
            continue
        kind: Any = Settings if name in MERGED else field.rebuild_annotation()
        if name == "sampling":
            kind = Settings | None
        if name in NAMED:
            kind = Annotated[kind, WithJsonSchema({"x-named": name})]
        if name in AXES:
            kind = _one_or_more(kind)
        key = AXES.get(name, name)
        found[key] = (kind, Field(None, validate_default=False, description=field.description))
    return found


if TYPE_CHECKING:
    Grid = _Grid
else:
    Grid = create_model("Grid", __base__=_Grid, __doc__=_Grid.__doc__, **_grid_fields())


class Sweep(Strict):
    """The content of a spec: what each cell has in common, and grids of what differs."""

    name: Annotated[str, Field(min_length=1)]
    """Name of the run folder, unless --name gives another."""
    description: str | None = None
    """What the sweep measures, for its readers."""
    data_root: str | None = None
    """Folder of the data sets, relative to the spec's own folder."""
    defaults: Grid = Grid()
    """Settings of every grid that does not set them itself."""
    grids: Annotated[list[Grid], Field(min_length=1)]
    """Each grid is the product of its lists of values, such as
    `{models: [gat], data: [cora], layouts: [seq, pp2]}`."""
