"""The experiment that the flags of `gnnhpc run` and `gnnhpc verify` describe, or a file has."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from gnnhpc.core.errors import InputError
from gnnhpc.core.run_paths import RunPaths
from gnnhpc.core.settings import Strict, input_error
from gnnhpc.data.data_files import data_root
from gnnhpc.data.data_settings import Data
from gnnhpc.data.registry import DEFAULT
from gnnhpc.experiment.custom_model_files import load_model
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.experiment.experiment_settings import DataField, ModelField
from gnnhpc.experiment.manifest import Cell, array_name
from gnnhpc.experiment.stage_cut import cut
from gnnhpc.experiment.yaml_file import parse_yaml
from gnnhpc.models.model import Model

Checked = TypeVar("Checked", bound=BaseModel)

_BATCH = 100
_NAMED = ("model", "data")


class _WithModel(Strict):
    model: ModelField


class _WithData(Strict):
    data: DataField


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
    raw["model"] = _planned_model(raw, "flags")
    if isinstance(raw["data"], dict):
        raw["data"] = {"name": DEFAULT[raw["model"].kinds()[0]]} | raw["data"]
    raw["data"] = _planned_data(raw, "flags")
    if raw["data"].facts().kind != "graph":
        raw.setdefault("batch_size", _BATCH)
    experiment = _built(raw, "flags")
    return _check_data(Cell.of(array_name(experiment), 0, experiment, root))


def build_experiment(raw: dict[str, Any], where: object) -> Experiment:
    """The experiment that plain data describe; InputError unless it can be cut into its stages."""
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


def read_cell(path: Path, root: str | None) -> Cell:
    """The cell in a file of one manifest line; `root`, if given, replaces the file's data root."""
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(path, None, f"unreadable ({error})", "one line of a manifest") from None
    if len(lines) != 1:
        raise InputError(path, None, f"{len(lines)} lines", "one line of a manifest")
    cell = Cell.from_line(lines[0], str(path))
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
