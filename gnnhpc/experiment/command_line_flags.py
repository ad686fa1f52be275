"""The experiment that the flags of `gnnhpc run` and `gnnhpc verify` describe, or a file has."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from gnnhpc.core.errors import InputError
from gnnhpc.core.run_paths import RunPaths
from gnnhpc.core.settings import input_error
from gnnhpc.data.data_files import data_root
from gnnhpc.data.data_settings import Data
from gnnhpc.data.registry import DEFAULT
from gnnhpc.experiment.copy_custom_models import load_model
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.experiment.experiment_settings import DataField, ModelField
from gnnhpc.experiment.manifest import Cell, array_name, read_manifest
from gnnhpc.experiment.stage_cut import cut
from gnnhpc.experiment.yaml_file import parse_yaml
from gnnhpc.models.model import Model

Planned = TypeVar("Planned", Model, Data)
_BATCH = 100
_MODEL, _DATA = TypeAdapter[Model](ModelField), TypeAdapter[Data](DataField)


def cell_from_flags(
    model: str,
    data: str | None,
    layout: str,
    microbatches: int,
    settings: Sequence[str],
    root: str | None,
) -> Cell:
    """The experiment of these flags; users' models and graphs are found from the current folder.

    The default data are synthetic, of the first kind that the model takes. Raises InputError for
    flags that make no experiment, or data that are not there.
    """
    raw: dict[str, Any] = {
        "model": {"name": model},
        "data": {"name": data} if data else {},
        "layout": layout,
        "microbatches": microbatches,
    }
    for setting in settings:
        apply_set_option(raw, setting)
    raw["model"] = planned = _planned(_MODEL, raw, "model", "flags")
    if isinstance(raw["data"], dict):
        raw["data"] = {"name": DEFAULT[planned.takes[0]]} | raw["data"]
    raw["data"] = found = _planned(_DATA, raw, "data", "flags")
    if found.facts().kind != "graph":
        raw.setdefault("batch_size", _BATCH)
    experiment = _built(raw, "flags")
    return _check_data(Cell.of(array_name(experiment), 0, experiment, root))


def build_experiment(raw: dict[str, Any], where: object) -> Experiment:
    """The experiment that plain data describe; InputError unless it can be cut into its stages."""
    if not raw.keys() >= {"model", "data"}:
        return _built(raw, where)
    model, data = _planned(_MODEL, raw, "model", where), _planned(_DATA, raw, "data", where)
    return _built(raw | {"model": model, "data": data}, where)


def _planned(kind: TypeAdapter[Planned], raw: dict[str, Any], key: str, where: object) -> Planned:
    try:
        return kind.validate_python(raw[key]).planned(Path.cwd())
    except ValidationError as error:
        raise input_error(error, where, below=key) from None


def _built(raw: dict[str, Any], where: object) -> Experiment:
    """The experiment of a planned model on planned data."""
    try:
        experiment = Experiment.model_validate(raw)
    except ValidationError as error:
        raise input_error(error, where, Experiment) from None
    cut(experiment, where=where)
    return experiment


def read_cell(path: Path, root: str | None) -> Cell:
    """The cell in a file of one manifest line; `root`, if given, replaces the file's data root."""
    cell, *others = read_manifest(path)
    if others:
        raise InputError(path, None, f"{1 + len(others)} cells", "one line of a manifest")
    load_model(cell.experiment, RunPaths(path.resolve().parent), Path.cwd())
    root = root or cell.data_root
    return _check_data(Cell.of(cell.array, cell.index, cell.experiment, root))


def _check_data(cell: Cell) -> Cell:
    """The cell; InputError unless its data exist, which `submit` has not checked for it."""
    cell.experiment.data.check(data_root(cell.data_root))
    return cell


_FLAG = "--set"


def apply_set_option(raw: dict[str, Any], override: str) -> None:
    """Set one key of `raw` in place; `model.blocks=4` sets a key of a mapping inside it.

    Raises InputError for text that is not key=value, a value that is not YAML, or a key inside
    something that is not a mapping.
    """
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise InputError(_FLAG, None, repr(override), "key=value")
    value = parse_yaml(text, f"{_FLAG} {key}")
    *parents, last = key.split(".")
    mapping = raw
    for parent in parents:
        inner = mapping.setdefault(parent, {})
        if not isinstance(inner, dict):
            raise InputError(_FLAG, key, f"{parent} is no mapping", "a key of the experiment")
        mapping = inner
    mapping[last] = value
