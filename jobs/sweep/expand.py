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
    "images": ("chunks", "rebuild", "features", "sampling"),
    "graphs": ("chunks", "rebuild", "sampling"),
    "whole": ("batch_size",),
    "sampled": ("chunks", "rebuild"),
}
"""Kind of mini-batches -> fields without a meaning there."""
_PLAIN_AXES = ("chunks", "sampling", "batch_size", "compile")
"""Axes that are multiplied, and whose values do not depend on other axes."""


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
        allowed = f"at most {MOST_CELLS} in a sweep"
        raise InputError(where, "grids", f"up to {count} cells", allowed)
    experiments = [
        experiment
        for repeat in range(max(grid.repeats for grid in grids))
        for grid in grids
        if repeat < grid.repeats
        for experiment in grid.experiments(repeat)
    ]
    for grid in grids:
        grid.check_all_are_used()
    return experiments


class _Grid:
    """One grid over the defaults: the values of each axis, and where the spec has them."""

    def __init__(
        self, sweep: Sweep, number: int, where: object, folder: Path, planned: Planned
    ) -> None:
        self.where, self.key = where, f"grids.{number}"
        self.own: dict[str, Any] = sweep.grids[number].set_keys()
        self.defaults: dict[str, Any] = sweep.defaults.set_keys()
        self.values = self.defaults | self.own
        for name in MERGED:
            if name in self.own and isinstance(before := self.defaults.get(name), dict | list):
                self.values[name] = _merged(before, self.own[name])
        self.repeats: int = self.values.get("repeats", 1)
        axes = {*AXES.values(), "repeats", "seq_microbatches"}
        self.fixed = {name: value for name, value in self.values.items() if name not in axes}
        self.plain = {name: self._axis(name) for name in _PLAIN_AXES if AXES[name] in self.values}
        models = [self._planned(each, folder, planned) for each in self._axis("model")]
        data = [self._planned(each, folder, planned) for each in self._axis("data")]
        self.outer = (self._axis("seed", [0]), data, models, *self.plain.values())
        self.pipelines = [
            {"schedule": schedule} | more
            for schedule in self._axis("schedule", ["gpipe"])
            for more in self._virtual_stages(schedule)
        ]
        self.places = self._places()
        self._used: set[str] = set()
        self._cut: set[tuple[object, ...]] = set()

    def _virtual_stages(self, schedule: str) -> list[dict[str, int]]:
        if schedule != "interleaved":
            return [{}]
        return [{"virtual_stages": count} for count in self._axis("virtual_stages", [1])]

    def _places(self) -> list[tuple[Layout, int]]:
        """Layouts with their micro-batches; all layouts get their first count before any second."""
        layouts, microbatches = self._axis("layout", [Layout()]), self._axis("microbatches", [1])
        of_seq = [1, *(count for count in microbatches if count != 1)]
        of_seq = self.values.get("seq_microbatches", of_seq)
        places = [
            (position, layout, count)
            for layout in layouts
            for position, count in enumerate(of_seq if layout == Layout() else microbatches)
        ]
        ordered = sorted(places, key=lambda place: place[0])
        return [(layout, count) for _, layout, count in ordered]

    @property
    def most_cells(self) -> int:
        """The most cells that there can be; some may be equal."""
        return self.repeats * math.prod(map(len, (*self.outer, self.pipelines, self.places)))

    def experiments(self, repeat: int) -> Iterator[Experiment]:
        """The product of all axes for one repeat."""
        for seed, data, model, *plain in itertools.product(*self.outer):
            settings = self.fixed | dict(zip(self.plain, plain, strict=True))
            unused = _unused_fields(model, data, settings.get("sampling"))
            base = {name: value for name, value in settings.items() if name not in unused}
            base |= {"seed": seed, "data": data, "model": model, "repeat": repeat}
            for pipeline, (layout, count) in itertools.product(self.pipelines, self.places):
                raw = base | {"layout": layout, "microbatches": count}
                if layout.stages > 1:
                    raw |= pipeline
                elif isinstance(raw.get("balance"), tuple):
                    del raw["balance"]
                if layout.replicas == 1:
                    raw.pop("bucket_mib", None)
                yield self._experiment(raw)

    def check_all_are_used(self) -> None:
        """Raises InputError for a key of this grid that none of its cells has a use for."""
        for field in Experiment.model_fields:
            key = AXES.get(field, field)
            if key in self.own and field not in self._used:
                value = self.own[key]
                shown = value[0] if isinstance(value, list) and len(value) == 1 else value
                allowed = "nothing here, since no cell of this grid has a use for it"
                raise InputError(self.where, self._key(field), short_value(shown), allowed)

    def _experiment(self, raw: dict[str, Any]) -> Experiment:
        """The checked experiment, with at least one layer for each of its stages."""
        self._used |= raw.keys()
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
        values: list[Any] | None = self.values.get(AXES[field], default)
        if values is None:
            key = f"{self.key}.{AXES[field]}"
            raise InputError(self.where, key, "nothing", "a value or a list of them")
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


def _merged(before: Any, value: Any) -> Any:
    """Settings over those of the defaults; a list, or no mapping, is merged one by one."""
    if isinstance(value, list):
        base = before[0] if isinstance(before, list) and len(before) == 1 else before
        return [_merged(base, each) for each in value]
    return before | value if isinstance(before, dict) and isinstance(value, dict) else value


def _unused_fields(model: Model, data: Data, sampling: object) -> tuple[str, ...]:
    """Fields without a meaning for this model and data; as defaults they are left out."""
    kind = data.facts().kind
    unused = _UNUSED[("whole" if sampling is None else "sampled") if kind == "graph" else kind]
    return unused if model.loaded.uses_batchnorm else (*unused, "batchnorm")
