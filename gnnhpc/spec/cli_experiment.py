"""Experiments spelled out on a command line or in a file of their own."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from gnnhpc.core.errors import InputError
from gnnhpc.core.pydantic_errors import input_error
from gnnhpc.core.settings import Strict
from gnnhpc.data.registry import DEFAULT
from gnnhpc.data.roots import check_data, data_root
from gnnhpc.data.settings import Data
from gnnhpc.models.protocol import Model
from gnnhpc.records.paths import RunPaths
from gnnhpc.spec.experiment import DataField, Experiment, ModelField
from gnnhpc.spec.manifest import Cell, array_name
from gnnhpc.spec.own_models import load_model
from gnnhpc.spec.stages import cut

Checked = TypeVar("Checked", bound=BaseModel)

_BATCH = 100
_NAMED = ("model", "data")


class _WithModel(Strict):
    model: ModelField


class _WithData(Strict):
    data: DataField


def cell_from_flags(flags: dict[str, Any], root: str | None) -> Cell:
    """The experiment of these flags; paths and models of the user's are seen from here.

    Data default to made-up ones of the first kind that the model takes. Raises InputError for
    flags that make no experiment, or data that are not there.
    """
    raw: dict[str, Any] = {
        "model": {"name": flags["model"]},
        "data": {"name": flags["data"]} if flags["data"] else {},
        "layout": flags["layout"],
        "microbatches": flags["microbatches"],
    }
    for setting in flags["settings"]:
        _apply(raw, setting)
    raw["model"] = _planned_model(raw, "flags")
    if isinstance(raw["data"], dict):
        raw["data"] = {"name": DEFAULT[raw["model"].kinds()[0]]} | raw["data"]
    raw["data"] = _planned_data(raw, "flags")
    if raw["data"].facts().kind == "images":
        raw.setdefault("batch_size", _BATCH)
    experiment = _built(raw, "flags")
    return _with_data(Cell(array_name(experiment), 0, experiment, root))


def build_experiment(raw: dict[str, Any], where: object) -> Experiment:
    """Check plain data as an experiment that can also be cut into its stages."""
    if not isinstance(raw, dict) or not raw.keys() >= set(_NAMED):
        return _checked(Experiment, raw, where)
    found = {"model": _planned_model(raw, where), "data": _planned_data(raw, where)}
    return _built(raw | found, where)


def _planned_model(raw: dict[str, Any], where: object) -> Model:
    return _checked(_WithModel, {"model": raw["model"]}, where).model.planned(Path.cwd())


def _planned_data(raw: dict[str, Any], where: object) -> Data:
    return _checked(_WithData, {"data": raw["data"]}, where).data.planned(Path.cwd())


def _built(raw: dict[str, Any], where: object) -> Experiment:
    """The experiment of a planned model on planned data."""
    experiment = _checked(Experiment, raw, where)
    cut(experiment, where=where)
    return experiment


def _checked(cls: type[Checked], raw: object, where: object) -> Checked:
    try:
        return cls.model_validate(raw)
    except ValidationError as error:
        raise input_error(error, where, Experiment) from None


def _apply(raw: dict[str, Any], setting: str) -> None:
    """Put `key=value` into its place; a model's or data set's name alone means its defaults."""
    key, equals, text = setting.partition("=")
    if not equals or not key:
        raise InputError("--set", None, repr(setting), "key=value")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise InputError("--set", key, repr(text), "a YAML value") from None
    if key in _NAMED and isinstance(value, str):
        value = {"name": value}
    *parents, last = key.split(".")
    place = raw
    for parent in parents:
        inner = place.setdefault(parent, {})
        if not isinstance(inner, dict):
            raise InputError("--set", key, f"{parent} is no mapping", "a key of the experiment")
        place = inner
    place[last] = value


def read_cell(path: Path, root: str | None) -> Cell:
    """A manifest line in a file of its own; a data root given by flag wins over the file's."""
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(path, None, f"unreadable ({error})", "one line of a manifest") from None
    if len(lines) != 1:
        raise InputError(path, None, f"{len(lines)} lines", "one line of a manifest")
    cell = Cell.from_line(lines[0], path)
    load_model(cell.experiment, RunPaths(path.resolve().parent), Path.cwd())
    return _with_data(dataclasses.replace(cell, data_root=root or cell.data_root))


def _with_data(cell: Cell) -> Cell:
    """The cell, if its data can be there: nobody has looked before, as `submit` does."""
    check_data(cell.experiment.data, data_root(cell.data_root))
    return cell
