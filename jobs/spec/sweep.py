"""A sweep spec: YAML with defaults and grids, expanded to a list of experiments.

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

import contextlib
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from gnnhpc.core.errors import InputError
from gnnhpc.core.layout import Layout
from gnnhpc.core.settings import Strict
from gnnhpc.data.registry import allowed_data, data_class
from gnnhpc.data.settings import Data
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.experiment.sampling import Sampling
from gnnhpc.models.protocol import Model
from gnnhpc.models.registry import allowed_models, model_class
from jobs.spec.spec_errors import as_mapping, check_keys, from_validation_error, short_value

AXES = {
    "models": "model",
    "data": "data",
    "layouts": "layout",
    "microbatches": "microbatches",
    "schedules": "schedule",
    "virtual_stages": "virtual_stages",
    "seeds": "seed",
    "chunks": "chunks",
    "batch_size": "batch_size",
    "sampling": "sampling",
}
"""Key of a grid -> field of an experiment; each takes a value or a list of them."""
SINGULAR = {field: axis for axis, field in AXES.items() if axis != field}
GRID_KEYS = (
    frozenset(AXES)
    | (Experiment.model_fields.keys() - {"repeat"})
    | {
        "repeats",
        "seq_microbatches",
    }
)
_NOT_FOR = {
    "images": (("chunks", "rebuild", "sampling"), "graph data"),
    "graphs": (("chunks", "rebuild", "sampling"), "data of one graph"),
    "whole": (("batch_size",), "images, many graphs and sampled graphs"),
    "sampled": (("chunks", "rebuild"), "graphs that are not sampled"),
}
"""By kind of mini-batches, keys that it does not have: left out as a default, an error in a grid;
and what they are for."""
_MERGED = ("optimizer", "sampling")
"""Settings of a grid that are put into those of the defaults, and do not replace them."""


MOST_CELLS = 100_000
"""Of a sweep: each is a line of the manifest and a folder."""


class Sweep(Strict):
    """The top level of a spec; the grids are checked as they are expanded."""

    name: Annotated[str, Field(min_length=1)]
    """Name of the run folder, unless --name gives another."""
    description: str | None = None
    data_root: str | None = None
    """Folder of the data sets, as seen from the spec's own folder."""
    defaults: dict[str, Any] = Field(default_factory=dict)
    grids: Annotated[tuple[dict[str, Any], ...], Field(min_length=1)]

    @classmethod
    def check(cls, raw: Mapping[str, Any], where: object) -> Sweep:
        """Raises InputError for unknown keys and wrong types at the top level."""
        check_keys(raw, cls.model_fields, where, None)
        grids = raw.get("grids")
        if not isinstance(grids, list) or not grids:
            raise InputError(where, "grids", short_value(grids), "a list of at least one grid")
        for number, grid in enumerate(grids):
            as_mapping(grid, where, f"grids.{number}")
        as_mapping(raw.get("defaults", {}), where, "defaults")
        try:
            return cls.model_validate(dict(raw) | {"grids": tuple(grids)}, strict=True)
        except ValidationError as error:
            inner = from_validation_error(error, where, "")
            raise InputError(
                where, inner.key and inner.key[1:], inner.found, inner.allowed
            ) from None


def expand(sweep: Sweep, where: object, folder: Path) -> list[Experiment]:
    """All experiments, repeats outermost and layouts innermost.

    In this order a local run, and arrays that run at the same time, measure the layouts in turn,
    so that a slow hour of the machine affects all of them. Paths and the user's own models are
    relative to `folder`. Raises InputError for any mistake.
    """
    check_keys(sweep.defaults, GRID_KEYS, where, "defaults")
    planned: _Planned = {}
    grids = [
        _Grid(sweep.defaults, grid, where, f"grids.{n}", folder, planned)
        for n, grid in enumerate(sweep.grids)
    ]
    count = sum(grid.most_cells for grid in grids)
    if count > MOST_CELLS:
        raise InputError(where, "grids", f"{count} cells", f"at most {MOST_CELLS} in a sweep")
    has_interleaved = any(grid.has_interleaved for grid in grids)
    for grid in grids:
        grid.check_parts_are_used(has_interleaved)
    return [
        experiment
        for repeat in range(max(grid.repeats for grid in grids))
        for grid in grids
        if repeat < grid.repeats
        for experiment in grid.experiments(repeat)
    ]


_Planned = dict[tuple[str, str], Model | Data]
"""Models and data sets by what their entries say: to plan one may mean to read a large file."""


class _Grid:
    """One grid over the defaults: each axis as a list of checked values."""

    def __init__(
        self,
        defaults: Mapping[str, Any],
        grid: Mapping[str, Any],
        where: object,
        key: str,
        folder: Path,
        planned: _Planned,
    ) -> None:
        check_keys(grid, GRID_KEYS, where, key)
        self.where = where
        self.key = key
        self.folder = folder
        self.planned = planned
        self.values: dict[str, Any] = {}
        self.origin: dict[str, str] = {}
        for place, mapping in (("defaults", defaults), (key, grid)):
            self._add_values(place, mapping)
        self.models = [self._config("model", entry) for entry in self._axis("model")]
        self.data = [self._config("data", entry) for entry in self._axis("data")]
        self.layouts = [self._layout(entry) for entry in self._axis("layout", ["seq"])]
        self.microbatches = self._axis("microbatches", [1])
        self.seq_microbatches = self._seq_microbatches()
        self.schedules = self._axis("schedule", ["gpipe"])
        several = any(layout.stages > 1 for layout in self.layouts)
        self.has_interleaved = several and "interleaved" in self.schedules
        self.parts = self._axis("virtual_stages", [1])
        if self.origin.get("virtual_stages", "").startswith(f"{key}."):
            self.check_parts_are_used(self.has_interleaved)
        self._check_buckets_are_used()
        self.seeds = self._axis("seed", [0])
        self.chunks = self._axis("chunks", [None])
        self.batch_sizes = self._axis("batch_size", [None])
        self.sampling = [self._sampling(entry) for entry in self._axis("sampling", [None])]
        self._check_each_is_once()
        self.repeats = self._repeats()
        axes = {*AXES.values(), "repeats", "seq_microbatches"}
        self.fixed = {name: value for name, value in self.values.items() if name not in axes}
        if isinstance(self.fixed.get("balance"), list):
            self.fixed["balance"] = tuple(self.fixed["balance"])

    def _add_values(self, place: str, mapping: Mapping[str, Any]) -> None:
        for name, value in mapping.items():
            if name in SINGULAR and SINGULAR[name] in mapping:
                found = f"both {name} and {SINGULAR[name]}"
                raise InputError(self.where, f"{place}.{name}", found, "one of them")
            field = AXES.get(name, name)
            before = self.values.get(field)
            merge = field in _MERGED and isinstance(before, dict)
            self.values[field] = _put_into(before or {}, value) if merge else value
            self.origin[field] = f"{place}.{name}"

    def _axis(self, field: str, default: list[Any] | None = None) -> list[Any]:
        if field not in self.values:
            if default is None:
                key = f"{self.key}.{SINGULAR.get(field, field)}"
                raise InputError(self.where, key, "nothing", "a value or a list of them")
            return default
        value = self.values[field]
        if value == []:
            raise InputError(self.where, self.origin[field], "an empty list", "at least one value")
        return value if isinstance(value, list) else [value]

    def _check_each_is_once(self) -> None:
        """Raises InputError for a value that a list has twice, by whatever name: one cell would be
        left of two."""
        checked: dict[str, Sequence[object]] = {
            "model": self.models,
            "data": self.data,
            "layout": self.layouts,
        }
        for field in (*AXES.values(), "seq_microbatches"):
            if field not in self.values:
                continue
            entries = self._axis(field)
            before: dict[object, object] = {}
            for entry, value in zip(entries, checked.get(field, entries), strict=True):
                same = _comparable(value)
                if same in before:
                    self._refuse_twice(field, before[same], entry)
                before[same] = entry

    def _refuse_twice(self, field: str, first: object, second: object) -> None:
        one, other = short_value(first), short_value(second)
        found = f"{other} twice" if one == other else f"{one} and {other}, the same"
        allowed = "each value once, and repeats for more than one measurement"
        raise InputError(self.where, self.origin[field], found, allowed)

    def _config(self, field: str, entry: object) -> Any:
        """A model or data set, checked, with what planning finds out about it."""
        key = self.origin[field]
        raw = {"name": entry} if isinstance(entry, str) else as_mapping(entry, self.where, key)
        cls = config_class(field, raw.get("name"))
        if cls is None:
            allowed = allowed_models() if field == "model" else allowed_data()
            raise InputError(self.where, f"{key}.name", short_value(raw.get("name")), allowed)
        if cls.model_config.get("extra") != "allow":
            check_keys(raw, cls.model_fields, self.where, key)
        entry_text = (field, repr(raw))
        if entry_text in self.planned:
            return self.planned[entry_text]
        try:
            found = cls.model_validate(raw, strict=True).planned(self.folder)
        except ValidationError as error:
            raise from_validation_error(error, self.where, key) from None
        except InputError as error:
            inner = f"{error.where}: {error.key}" if error.key else error.where
            placed = InputError(self.where, f"{key}: {inner}", error.found, error.allowed)
            raise placed from error.__cause__
        self.planned[entry_text] = found
        return found

    def _sampling(self, entry: object) -> Any:
        """One entry, or none; lists as the tuples that settings have."""
        if isinstance(entry, dict) and entry.get("fanouts") == []:
            key = f"{self.origin['sampling']}.fanouts"
            raise InputError(self.where, key, "an empty list", "at least one value")
        return _with_tuple(entry)

    def _layout(self, entry: object) -> Layout:
        try:
            return Layout.parse(entry if isinstance(entry, str) else repr(entry))
        except InputError as error:
            key = self.origin["layout"]
            raise InputError(self.where, key, repr(entry), error.allowed) from None

    def _seq_microbatches(self) -> list[Any]:
        if "seq_microbatches" in self.values:
            return self._axis("seq_microbatches")
        self.origin["seq_microbatches"] = self.origin.get("microbatches", "microbatches")
        return [1, *(count for count in self.microbatches if count != 1)]

    def check_parts_are_used(self, has_interleaved: bool) -> None:
        """Raises InputError for several parts a stage where no pipeline is interleaved."""
        if not has_interleaved and self.parts != [1]:
            value = short_value(self.values["virtual_stages"])
            allowed = "nothing here, virtual_stages is for pipelines with schedule interleaved"
            raise InputError(self.where, self.origin["virtual_stages"], value, allowed)

    def _check_buckets_are_used(self) -> None:
        """Raises InputError for buckets that the grid itself asks for, where nothing is reduced."""
        given = self.origin.get("bucket_mib", "").startswith(f"{self.key}.")
        if given and all(layout.replicas == 1 for layout in self.layouts):
            value = short_value(self.values["bucket_mib"])
            allowed = "nothing here, bucket_mib is for layouts with replicas"
            raise InputError(self.where, self.origin["bucket_mib"], value, allowed)

    def _repeats(self) -> int:
        repeats = self.values.get("repeats", 1)
        whole = isinstance(repeats, int) and not isinstance(repeats, bool)
        if not whole or not 1 <= repeats <= MOST_CELLS:
            allowed = f"a whole number from 1 to {MOST_CELLS}"
            raise InputError(self.where, self.origin["repeats"], short_value(repeats), allowed)
        return int(repeats)

    @property
    def most_cells(self) -> int:
        """As many as `experiments` gives over all repeats, of which some may be equal."""
        axes = (
            *(self.seeds, self.data, self.models),
            *(self.chunks, self.sampling, self.batch_sizes),
        )
        parts = sum(len(self._parts_under(schedule)) for schedule in self.schedules)
        layouts = sum(len(self._microbatches_of(layout)) for layout in self.layouts)
        return self.repeats * math.prod(map(len, axes)) * parts * layouts

    def experiments(self, repeat: int) -> Iterator[Experiment]:
        """The product of the axes for one repeat, layouts innermost."""
        for seed, data, model in itertools.product(self.seeds, self.data, self.models):
            self._check_all_are_used(model, data)
            for chunks, sampling, batch_size, schedule in itertools.product(
                self.chunks, self.sampling, self.batch_sizes, self.schedules
            ):
                axes = {"chunks": chunks, "sampling": sampling, "batch_size": batch_size}
                told = {name: value for name, value in axes.items() if value is not None}
                unused = self._unused(model, _mini_batches(data, sampling))
                base = {name: v for name, v in (self.fixed | told).items() if name not in unused}
                base |= {"seed": seed, "data": data, "model": model, "repeat": repeat}
                for parts in self._parts_under(schedule):
                    yield from self._over_layouts(base, schedule, parts)

    def _parts_under(self, schedule: object) -> list[Any]:
        """Of the model, that each stage of a pipeline holds."""
        if schedule == "interleaved":
            return self.parts
        return [2 if schedule == "zbv" else 1]

    def _microbatches_of(self, layout: Layout) -> list[Any]:
        return self.seq_microbatches if layout == Layout() else self.microbatches

    def _over_layouts(
        self, base: dict[str, Any], schedule: object, parts: object
    ) -> Iterator[Experiment]:
        counts = {layout: self._microbatches_of(layout) for layout in self.layouts}
        for position in range(max(len(values) for values in counts.values())):
            for layout in self.layouts:
                if position >= len(counts[layout]):
                    continue
                raw = base | {"layout": layout, "microbatches": counts[layout][position]}
                if layout.stages > 1:
                    raw |= {"schedule": schedule, "virtual_stages": parts}
                elif isinstance(raw.get("balance"), tuple):
                    del raw["balance"]
                if layout.replicas == 1:
                    raw.pop("bucket_mib", None)
                yield self._experiment(raw)

    def _unused(self, model: Model, mini_batches: str) -> dict[str, str]:
        """The fields that mean nothing to this model and kind of mini-batches, and why."""
        names, used_for = _NOT_FOR[mini_batches]
        unused = {name: f"{name} is for {used_for}" for name in names}
        if not model.loaded.uses_batchnorm:
            unused["batchnorm"] = f"{model.label} has no BatchNorm"
        return unused

    def _check_all_are_used(self, model: Model, data: Data) -> None:
        """Raises InputError for a field of the grid itself that means nothing to any of it."""
        found = [self._unused(model, _mini_batches(data, one)) for one in self.sampling]
        for name, reason in found[0].items():
            given = name in self.values and not self.origin[name].startswith("defaults.")
            if given and all(name in unused for unused in found):
                value = short_value(self.values[name])
                raise InputError(self.where, self.origin[name], value, f"nothing here, {reason}")

    def _experiment(self, raw: dict[str, Any]) -> Experiment:
        try:
            return Experiment.model_validate(raw, strict=True)
        except ValidationError as error:
            plain = from_validation_error(error, self.where, "")
            field, _, rest = (plain.key or "").lstrip(".").partition(".")
            source = field
            if field == "microbatches" and raw["layout"] == Layout():
                source = "seq_microbatches"
            key = self.origin.get(source, f"{self.key}.{field}" if field else self.key)
            key = f"{key}.{rest}" if rest else key
            raise InputError(self.where, key, plain.found, plain.allowed) from None


def _mini_batches(data: Data, sampling: object) -> str:
    """A key of `_NOT_FOR`."""
    kind = data.facts().kind
    if kind != "graph":
        return kind
    return "whole" if sampling is None else "sampled"


def _with_tuple(entry: object) -> Any:
    """How many neighbours are drawn, as the tuple that settings have."""
    if isinstance(entry, dict) and isinstance(entry.get("fanouts"), list):
        return entry | {"fanouts": tuple(entry["fanouts"])}
    return entry


def _comparable(value: object) -> object:
    """What is equal for values that are the same in an experiment: 1 and true are not, settings
    are whether they say a default or not."""
    if isinstance(value, dict):
        with contextlib.suppress(ValidationError):
            return Sampling.model_validate(_with_tuple(value), strict=True)
        # One that is none is refused with its experiment.
    return value if isinstance(value, Model | Data | Layout) else repr(value)


def _put_into(before: dict[str, Any], value: Any) -> Any:
    """A mapping, or each of a list, over the settings before; anything else in their place."""
    if isinstance(value, list):
        return [_put_into(before, each) for each in value]
    return before | value if isinstance(value, dict) else value


def config_class(field: str, name: object) -> type[Model] | type[Data] | None:
    """The class of a model's, or of a data set's, settings; none for an unknown name."""
    if not isinstance(name, str):
        return None
    return model_class(name) if field == "model" else data_class(name)
