"""Expands the grids of a sweep to experiments."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from gnnhpc.core.errors import InputError
from gnnhpc.core.layout import Layout
from gnnhpc.core.settings import input_error, short_value
from gnnhpc.data.data_settings import Data
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.experiment.stage_cut import cut
from gnnhpc.models.model import Model
from jobs.sweep.sweep import AXES, MERGED, MOST_CELLS, Sweep

Entry = TypeVar("Entry", Model, Data)
Planned = dict[str, Model | Data]
"""Models and data sets after planning, which may read a large file, by their settings."""

_UNUSED = {
    "images": (("chunks", "rebuild", "features", "sampling"), "graph data"),
    "graphs": (("chunks", "rebuild", "sampling"), "data of one graph"),
    "whole": (("batch_size",), "images, many graphs and sampled graphs"),
    "sampled": (("chunks", "rebuild"), "graphs that are not sampled"),
}
"""Kind of mini-batches -> fields without a meaning there, and what these fields are for."""


def expand(sweep: Sweep, where: object, folder: Path) -> list[Experiment]:
    """All experiments: repeats are the outermost loop, layouts the innermost.

    In this order a local run, and arrays that run at the same time, measure all layouts within a
    short time, so that a slow hour of the machine affects all of them. Paths and custom models are
    relative to `folder`. Raises InputError for any mistake.
    """
    planned: Planned = {}
    grids = [_Grid(sweep, number, where, folder, planned) for number in range(len(sweep.grids))]
    count = sum(grid.most_cells for grid in grids)
    if count > MOST_CELLS:
        raise InputError(where, "grids", f"{count} cells", f"at most {MOST_CELLS} in a sweep")
    interleaved = any(grid.is_interleaved for grid in grids)
    for grid in grids:
        grid.check_virtual_stages(interleaved)
    return [
        experiment
        for repeat in range(max(grid.repeats for grid in grids))
        for grid in grids
        if repeat < grid.repeats
        for experiment in grid.experiments(repeat)
    ]


class _Grid:
    """One grid over the defaults: the values of each axis, and where the spec has them."""

    def __init__(
        self, sweep: Sweep, number: int, where: object, folder: Path, planned: Planned
    ) -> None:
        self.where, self.key = where, f"grids.{number}"
        self._cut: set[tuple[object, ...]] = set()
        self.own: dict[str, Any] = sweep.grids[number].given()
        self.defaults: dict[str, Any] = sweep.defaults.given()
        self.values = self.defaults | self.own
        for name in MERGED:
            if name in self.own and isinstance(before := self.defaults.get(name), dict | list):
                self.values[name] = _merged(before, self.own[name])
        self.models = [self._planned(each, folder, planned) for each in self._axis("model")]
        self.data = [self._planned(each, folder, planned) for each in self._axis("data")]
        self.layouts: list[Layout] = self._axis("layout", [Layout()])
        self.microbatches: list[int] = self._axis("microbatches", [1])
        self.schedules: list[str] = self._axis("schedule", ["gpipe"])
        self.virtual_stages: list[int] = self._axis("virtual_stages", [1])
        self.seeds: list[int] = self._axis("seed", [0])
        self.chunks = self._axis("chunks", [None])
        self.batch_sizes = self._axis("batch_size", [None])
        self.sampling = self._axis("sampling", [None])
        self.compile = self._axis("compile", [None])
        self.repeats: int = self.values.get("repeats", 1)
        others = [1, *(count for count in self.microbatches if count != 1)]
        self.seq_microbatches: list[int] = self.values.get("seq_microbatches", others)
        self._check_no_duplicates()
        axes = {*AXES.values(), "repeats", "seq_microbatches"}
        self.fixed = {name: value for name, value in self.values.items() if name not in axes}
        several = any(layout.stages > 1 for layout in self.layouts)
        self.is_interleaved = several and "interleaved" in self.schedules
        if "virtual_stages" in self.own:
            self.check_virtual_stages(self.is_interleaved)
        if "bucket_mib" in self.own and all(layout.replicas == 1 for layout in self.layouts):
            raise self._unused_error("bucket_mib", "bucket_mib is for layouts with replicas")

    @property
    def most_cells(self) -> int:
        """The number of cells, of which some may be equal."""
        axes = (
            *(self.seeds, self.data, self.models, self.chunks, self.sampling, self.batch_sizes),
            self.compile,
        )
        stages = sum(len(self._virtual_stages_of(schedule)) for schedule in self.schedules)
        layouts = sum(len(self._microbatches_of(layout)) for layout in self.layouts)
        return self.repeats * math.prod(map(len, axes)) * stages * layouts

    def experiments(self, repeat: int) -> Iterator[Experiment]:
        """The product of all axes for one repeat."""
        for seed, data, model in itertools.product(self.seeds, self.data, self.models):
            self._check_all_are_used(model, data)
            for chunks, sampling, batch_size, mode, schedule in itertools.product(
                self.chunks, self.sampling, self.batch_sizes, self.compile, self.schedules
            ):
                axes = {"chunks": chunks, "sampling": sampling, "batch_size": batch_size}
                axes["compile"] = mode
                given = {name: value for name, value in axes.items() if value is not None}
                unused = _unused_fields(model, data, sampling)
                base = {name: v for name, v in (self.fixed | given).items() if name not in unused}
                base |= {"seed": seed, "data": data, "model": model, "repeat": repeat}
                for count in self._virtual_stages_of(schedule):
                    yield from self._over_layouts(base, schedule, count)

    def check_virtual_stages(self, is_interleaved: bool) -> None:
        """Raises InputError for several virtual stages where no pipeline is interleaved."""
        if not is_interleaved and self.virtual_stages != [1]:
            reason = "virtual_stages is for pipelines with schedule interleaved"
            raise self._unused_error("virtual_stages", reason)

    def _over_layouts(
        self, base: Mapping[str, Any], schedule: str, virtual_stages: int
    ) -> Iterator[Experiment]:
        counts = {layout: self._microbatches_of(layout) for layout in self.layouts}
        for position in range(max(len(values) for values in counts.values())):
            for layout in self.layouts:
                if position >= len(counts[layout]):
                    continue
                raw = {**base, "layout": layout, "microbatches": counts[layout][position]}
                if layout.stages > 1:
                    raw |= {"schedule": schedule, "virtual_stages": virtual_stages}
                elif isinstance(raw.get("balance"), tuple):
                    del raw["balance"]
                if layout.replicas == 1:
                    raw.pop("bucket_mib", None)
                yield self._experiment(raw)

    def _experiment(self, raw: dict[str, Any]) -> Experiment:
        """The checked experiment, with at least one layer for each of its stages."""
        try:
            experiment = Experiment.model_validate(raw)
        except ValidationError as error:
            plain = input_error(error, self.where, Experiment)
            raise self._in_spec(plain, raw) from None
        stages, virtual = experiment.layout.stages, experiment.virtual_stages
        key = (experiment.model, experiment.data, stages, virtual, experiment.balance)
        if key not in self._cut:
            self._cut.add(key)
            try:
                cut(experiment, where=self.where)
            except InputError as error:
                of_spec = error.where == str(self.where)
                raise (self._in_spec(error, raw) if of_spec else error) from None
        return experiment

    def _in_spec(self, error: InputError, raw: Mapping[str, Any]) -> InputError:
        """The error of a field of an experiment, at the place where the spec sets it."""
        field, _, rest = (error.key or "").partition(".")
        if field == "microbatches" and raw["layout"] == Layout():
            field = "seq_microbatches" if "seq_microbatches" in self.values else field
        key = ".".join(part for part in (self._key(field), rest) if part)
        return InputError(self.where, key, error.found, error.allowed)

    def _axis(self, field: str, default: list[Any] | None = None) -> list[Any]:
        axis = AXES[field]
        if axis not in self.values:
            if default is None:
                key = f"{self.key}.{axis}"
                raise InputError(self.where, key, "nothing", "a value or a list of them")
            return default
        values: list[Any] = self.values[axis]
        return values

    def _key(self, field: str) -> str:
        """The place at which the spec sets a field of experiments."""
        key = AXES.get(field, field)
        return f"{'defaults' if key in self.defaults and key not in self.own else self.key}.{key}"

    def _planned(self, entry: Entry, folder: Path, planned: Planned) -> Entry:
        """A model or data set, with what planning adds to its settings."""
        settings = repr(entry)
        if settings not in planned:
            field = "model" if isinstance(entry, Model) else "data"
            try:
                planned[settings] = entry.planned(folder)
            except InputError as error:
                inner = f"{error.where}: {error.key}" if error.key else error.where
                place = f"{self._key(field)}: {inner}"
                raise InputError(self.where, place, error.found, error.allowed) from error.__cause__
        return planned[settings]  # type: ignore[return-value]

    def _check_no_duplicates(self) -> None:
        """Raises InputError for equal values of one axis, which would be one cell."""
        for axis in (*AXES.values(), "seq_microbatches"):
            values = self.values.get(axis, [])
            for number, value in enumerate(values):
                if value in values[:number]:
                    allowed = "each value once, and repeats for more than one measurement"
                    found = f"{short_value(_as_written(value))} twice"
                    raise InputError(self.where, self._key(axis), found, allowed)

    def _virtual_stages_of(self, schedule: str) -> list[int]:
        if schedule == "interleaved":
            return self.virtual_stages
        return [2 if schedule == "zbv" else 1]

    def _microbatches_of(self, layout: Layout) -> list[int]:
        return self.seq_microbatches if layout == Layout() else self.microbatches

    def _check_all_are_used(self, model: Model, data: Data) -> None:
        """Raises InputError for a field of this grid that has no meaning for any of its cells."""
        unused = [_unused_fields(model, data, one) for one in self.sampling]
        for name, reason in unused[0].items():
            if name in self.own and all(name in each for each in unused):
                raise self._unused_error(name, reason)

    def _unused_error(self, field: str, reason: str) -> InputError:
        value = self.values[field]
        shown = short_value(value[0] if isinstance(value, list) and len(value) == 1 else value)
        return InputError(self.where, self._key(field), shown, f"nothing here, {reason}")


def _merged(before: Any, value: Any) -> Any:
    """Settings over those of the defaults; a list, or no mapping, is merged one by one."""
    if isinstance(value, list):
        base = before[0] if isinstance(before, list) and len(before) == 1 else before
        return [_merged(base, each) for each in value]
    return before | value if isinstance(before, dict) and isinstance(value, dict) else value


def _unused_fields(model: Model, data: Data, sampling: object) -> dict[str, str]:
    """Fields without a meaning for this model and data, each with the reason."""
    kind = data.facts().kind
    batches = ("whole" if sampling is None else "sampled") if kind == "graph" else kind
    names, purpose = _UNUSED[batches]
    unused = {name: f"{name} is for {purpose}" for name in names}
    if not model.loaded.uses_batchnorm:
        unused["batchnorm"] = f"{model.label} has no BatchNorm"
    return unused


def _as_written(value: object) -> object:
    if isinstance(value, Model | Data):
        return value.name
    return str(value) if isinstance(value, Layout) else value
