"""Experiments spelled out on a command line or in a file of their own."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from gnnhpc.core.errors import InputError
from gnnhpc.core.pydantic_errors import input_error
from gnnhpc.data.roots import check_data, data_root
from gnnhpc.records.paths import RunPaths
from gnnhpc.spec.experiment import Experiment
from gnnhpc.spec.manifest import Cell, array_name
from gnnhpc.spec.own_model_files import load_model
from gnnhpc.spec.stage_cut import cut

_SYNTHETIC = {"vig": "synthetic-cifar10", "gat": "synthetic-citation"}
_BATCH = 100


def cell_from_flags(flags: dict[str, Any], root: str | None) -> Cell:
    """Raises InputError for flags that make no experiment, or data that are not there."""
    model = flags["model"]
    raw: dict[str, Any] = {
        "model": {"name": model},
        "data": {"name": flags["data"] or _SYNTHETIC.get(model, "")},
        "layout": flags["layout"],
        "microbatches": flags["microbatches"],
    }
    if model == "vig":
        raw["batch_size"] = _BATCH
    for setting in flags["settings"]:
        _apply(raw, setting)
    experiment = build_experiment(raw, "flags")
    return _with_data(Cell(array_name(experiment), 0, experiment, root))


def build_experiment(raw: dict[str, Any], where: object) -> Experiment:
    """Check plain data as an experiment that can also be cut into its stages."""
    experiment = _checked(raw, where)
    here = Path.cwd()
    found = {"model": experiment.model.planned(here), "data": experiment.data.planned(here)}
    experiment = _checked(dict(experiment) | found, where)
    cut(experiment, where=where)
    return experiment


def _checked(raw: dict[str, Any], where: object) -> Experiment:
    try:
        return Experiment.model_validate(raw)
    except ValidationError as error:
        raise input_error(error, where, Experiment) from None


def _apply(raw: dict[str, Any], setting: str) -> None:
    key, equals, text = setting.partition("=")
    if not equals or not key:
        raise InputError("--set", None, repr(setting), "key=value")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise InputError("--set", key, repr(text), "a YAML value") from None
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
