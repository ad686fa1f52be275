"""The experiment that the flags of `gnnhpc run` and `gnnhpc verify` describe, or a file has."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gnnhpc.core.errors import InputError
from gnnhpc.core.pydantic_errors import input_error
from gnnhpc.data.roots import check_data, data_root
from gnnhpc.records.run_paths import RunPaths
from gnnhpc.spec.experiment import Experiment
from gnnhpc.spec.manifest import Cell, array_name
from gnnhpc.spec.own_model_files import load_model
from gnnhpc.spec.set_option import apply_set_option
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
        apply_set_option(raw, setting)
    experiment = build_experiment(raw, "flags")
    return _check_data(Cell(array_name(experiment), 0, experiment, root))


def build_experiment(raw: dict[str, Any], where: object) -> Experiment:
    """The experiment that plain data describe; InputError unless it can be cut into its stages."""
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


def read_cell(path: Path, root: str | None) -> Cell:
    """The cell in a file of one manifest line; `root`, if given, replaces the file's data root."""
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(path, None, f"unreadable ({error})", "one line of a manifest") from None
    if len(lines) != 1:
        raise InputError(path, None, f"{len(lines)} lines", "one line of a manifest")
    cell = Cell.from_line(lines[0], path)
    load_model(cell.experiment, RunPaths(path.resolve().parent), Path.cwd())
    return _check_data(dataclasses.replace(cell, data_root=root or cell.data_root))


def _check_data(cell: Cell) -> Cell:
    """The cell; InputError unless its data exist, which `submit` has not checked for it."""
    check_data(cell.experiment.data, data_root(cell.data_root))
    return cell
