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

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Field, ValidationError, create_model
from pydantic.json_schema import WithJsonSchema

from gnnhpc.core.errors import InputError
from gnnhpc.core.settings import Positive, Strict, input_error, short_value
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.experiment.yaml_file import as_mapping, check_keys

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
SINGULAR = {field: axis for field, axis in AXES.items() if field != axis}
"""Other names of these keys, for a single value: `layout: pp2`."""
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

    def given(self) -> dict[str, Any]:
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
GRID_KEYS = frozenset(Grid.model_fields) | SINGULAR.keys()


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


def plural_spec(raw: Mapping[str, Any], where: object) -> dict[str, Any]:
    """A spec with `layouts` for `layout`, and so on. Raises InputError for an unknown key."""
    check_keys(raw, Sweep.model_fields, where, None)
    grids = raw.get("grids")
    if not isinstance(grids, list) or not grids:
        raise InputError(where, "grids", short_value(grids), "a list of at least one grid")
    defaults = _plural_names(raw.get("defaults", {}), where, "defaults")
    plural = [_plural_names(grid, where, f"grids.{i}") for i, grid in enumerate(grids)]
    return {**raw, "defaults": defaults, "grids": plural}


def read_sweep(plural: Mapping[str, Any], where: object) -> Sweep:
    """The checked content of a spec, as `plural_spec` returns it.

    Raises InputError for the first value that does not fit.
    """
    try:
        # As JSON, since a strict check in Python would refuse a list where a tuple is meant.
        return Sweep.model_validate_json(json.dumps(plural), strict=True)
    except ValidationError as error:
        plain = input_error(error, where)
        key = _without_only_indices(plain.key or "", plural)
        raise InputError(where, key or None, plain.found, plain.allowed) from None


def _without_only_indices(key: str, value: Any) -> str:
    """A key without the index of a value that is the only one of its list."""
    kept: list[str] = []
    for part in key.split("."):
        index = int(part) if part.isdigit() else None
        is_list = isinstance(value, list)
        if index is None or (is_list and len(value) > 1) or kept == ["grids"]:
            kept.append(part)
        if is_list and index is not None and index < len(value):
            value = value[index]
        elif isinstance(value, dict):
            value = value.get(part)
    return ".".join(kept)


def _plural_names(mapping: object, where: object, key: str) -> dict[str, Any]:
    grid = as_mapping(mapping, where, key)
    check_keys(grid, GRID_KEYS, where, key)
    for name, axis in SINGULAR.items():
        if name in grid and axis in grid:
            raise InputError(where, f"{key}.{name}", f"both {name} and {axis}", "one of them")
    return {SINGULAR.get(name, name): value for name, value in grid.items()}
