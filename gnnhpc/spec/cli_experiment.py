"""Experiments spelled out on a command line or in a file of their own."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from gnnhpc.core.errors import InputError
from gnnhpc.core.pydantic_errors import input_error
from gnnhpc.data.registry import DEFAULT, allowed_data, data_class
from gnnhpc.data.roots import check_data, data_root
from gnnhpc.data.settings import Data
from gnnhpc.models.protocol import Model
from gnnhpc.models.registry import allowed_models, model_class
from gnnhpc.spec.experiment import Experiment
from gnnhpc.spec.manifest import Cell, array_name
from gnnhpc.spec.stages import cut

_BATCH = 100
_NAMED = ("model", "data")
_FLAGS = "flags"


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
    folder = Path.cwd()
    model: Model = _checked(raw, "model", None, model_class, allowed_models()).planned(folder)
    usual = DEFAULT[model.kinds()[0]]
    data: Data = _checked(raw, "data", usual, data_class, allowed_data()).planned(folder)
    if data.facts().kind == "images":
        raw.setdefault("batch_size", _BATCH)
    experiment = build_experiment(raw | {"model": model, "data": data}, _FLAGS)
    return _with_data(Cell(array_name(experiment), 0, experiment, root))


def _checked(
    raw: dict[str, Any], field: str, usual: str | None, class_of: Any, allowed: str
) -> Any:
    """The settings of the model or data set named in `raw`, else of `usual`.

    Raises InputError naming the key that is wrong.
    """
    told = raw[field]
    if not isinstance(told, dict):
        raise InputError(_FLAGS, field, repr(told), "a mapping of keys to values, or a name")
    told = ({"name": usual} if usual else {}) | told
    name = told.get("name")
    found = class_of(name) if isinstance(name, str) else None
    if found is None:
        raise InputError(_FLAGS, f"{field}.name", repr(name), allowed)
    try:
        return found.model_validate(told)
    except ValidationError as error:
        plain = input_error(error, _FLAGS, found)
        key = f"{field}.{plain.key}" if plain.key else field
        raise InputError(_FLAGS, key, plain.found, plain.allowed) from None


def build_experiment(raw: dict[str, Any], where: object) -> Experiment:
    """Check plain data as an experiment that can also be cut into its stages."""
    try:
        experiment = Experiment.model_validate(raw)
    except ValidationError as error:
        raise input_error(error, where, Experiment) from None
    cut(experiment, where=where)
    return experiment


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
    return _with_data(dataclasses.replace(cell, data_root=root or cell.data_root))


def _with_data(cell: Cell) -> Cell:
    """The cell, if its data can be there: nobody has looked before, as `submit` does."""
    check_data(cell.experiment.data, data_root(cell.data_root))
    return cell
