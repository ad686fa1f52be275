"""The manifest: one cell a line, with everything that is needed to run it; never rewritten."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gnnhpc.core.errors import InputError
from gnnhpc.core.layout import Layout, processes_of
from gnnhpc.core.settings import input_error
from gnnhpc.core.versioned_json import build_record, check_version, read_object_lines
from gnnhpc.experiment.experiment import Experiment

MANIFEST_VERSION = 1
MOST_TASKS = 1000
"""Cells of an array: Slurm's usual MaxArraySize of 1001 allows task ids up to 1000."""
_ALLOWED = "one cell a line"


@dataclass(frozen=True)
class _Line:
    """What a line of the manifest has besides its version."""

    array: str
    index: int
    id: str
    data_root: str | None
    experiment: dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """One experiment of a sweep, with its array and its index there.

    `index` counts within the array `<model>-<layout>` and is what $SLURM_ARRAY_TASK_ID selects; it
    never changes its meaning once it is written. The settings are checked on first use of
    `experiment`, since `status` reads ten thousand cells and needs no experiment.
    """

    array: str
    index: int
    id: str
    settings: Mapping[str, Any] = field(hash=False)
    """The experiment as plain data."""
    data_root: str | None = None
    where: str = field(default="cell", compare=False)
    """The line of the manifest, for errors."""

    @classmethod
    def of(
        cls, array: str, index: int, experiment: Experiment, data_root: str | None = None
    ) -> Cell:
        """The cell of a checked experiment."""
        cell = cls(array, index, experiment.id, experiment.model_dump(mode="json"), data_root)
        cell.__dict__["experiment"] = experiment
        return cell

    @classmethod
    def read(cls, raw: dict[str, Any], where: str) -> Cell:
        """Raises InputError for a line of another version, and for a missing or wrong key."""
        check_version(raw, MANIFEST_VERSION, where)
        line = build_record(_Line, raw, where)
        return cls(line.array, line.index, line.id, line.experiment, line.data_root, where)

    @cached_property
    def experiment(self) -> Experiment:
        """Raises InputError for settings that are no experiment, or one with another id."""
        try:
            experiment = Experiment.model_validate(self.settings)
        except ValidationError as error:
            raise input_error(error, self.where, Experiment) from None
        if experiment.id != self.id:
            allowed = f"{experiment.id}, which its content gives"
            raise InputError(self.where, "id", self.id, allowed)
        return experiment

    @property
    def key(self) -> tuple[str, int]:
        """Array and index."""
        return self.array, self.index

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        layout = Layout.parse(str(self.settings.get("layout", "seq")))
        return processes_of(layout, str(self.settings.get("engine", ""))).world_size

    @property
    def train_steps(self) -> int:
        return int(self.settings.get("train_steps", 10))

    def to_line(self) -> str:
        return json.dumps(
            {
                "version": MANIFEST_VERSION,
                "array": self.array,
                "index": self.index,
                "id": self.id,
                "data_root": self.data_root,
                "experiment": self.settings,
            }
        )


def array_name(experiment: Experiment) -> str:
    """Model and layout; and the engine, where its processes are others than the layout's."""
    name = f"{experiment.model.label}-{experiment.layout}"
    one_process = experiment.process_layout != experiment.layout
    return f"{name}-{experiment.engine}" if one_process else name


def assign_indices(experiments: Iterable[Experiment], data_root: str | None = None) -> list[Cell]:
    """Give each experiment the next index of its array; of equal ones the first alone.

    The cells after the first thousand are in another array, such as vig-pp2.2.
    """
    cells: dict[str, Cell] = {}
    following: dict[str, int] = {}
    for experiment in experiments:
        if experiment.id in cells:
            continue
        name = array_name(experiment)
        number = following.get(name, 0)
        following[name] = number + 1
        part, index = divmod(number, MOST_TASKS)
        array = f"{name}.{part + 1}" if part else name
        cells[experiment.id] = Cell.of(array, index, experiment, data_root)
    return list(cells.values())


def write_manifest(path: Path, cells: Iterable[Cell]) -> None:
    """Raises FileExistsError if there is one: a manifest is never rewritten."""
    with path.open("x", encoding="utf-8") as stream:
        stream.writelines(cell.to_line() + "\n" for cell in cells)


def read_manifest(path: Path) -> list[Cell]:
    """All cells, in order.

    Raises InputError naming the line for damage, and naming the file where it has no cell.
    """
    try:
        lines = read_object_lines(path, _ALLOWED)
    except FileNotFoundError:
        raise InputError(path, None, "no such file", "the manifest.jsonl of a run") from None
    if not lines:
        raise InputError(path, None, "no cell", _ALLOWED)
    return [Cell.read(raw, where) for where, raw in lines]


def find_cell(path: Path, array: str, index: int) -> Cell:
    """The cell that an array task runs.

    Raises InputError for an unknown array, an index out of range, and as `read_manifest` does.
    """
    cells = read_manifest(path)
    of_array = {cell.index: cell for cell in cells if cell.array == array}
    if not of_array:
        raise InputError(path, "array", array, ", ".join(sorted({cell.array for cell in cells})))
    if index not in of_array:
        raise InputError(path, f"index of {array}", index, f"0 to {max(of_array)}")
    return of_array[index]
