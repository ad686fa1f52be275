"""The manifest: one cell a line, with all that is needed to run it; never rewritten."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from gnnhpc.core.errors import InputError
from gnnhpc.core.json_files import parse_object
from gnnhpc.core.pydantic_errors import input_error
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.experiment.manifest_lines import (
    MANIFEST_VERSION,
    ManifestLine,
    find_manifest_line,
    parse_manifest_line,
    read_manifest_lines,
)


@dataclass(frozen=True)
class Cell:
    """One experiment of a sweep, with its array and its index there.

    `index` counts within the array `<model>-<layout>` and is what $SLURM_ARRAY_TASK_ID selects;
    it never changes meaning once written.
    """

    array: str
    index: int
    experiment: Experiment
    data_root: str | None = None

    @property
    def id(self) -> str:
        return self.experiment.id

    def to_line(self) -> str:
        return json.dumps(
            {
                "version": MANIFEST_VERSION,
                "array": self.array,
                "index": self.index,
                "id": self.id,
                "data_root": self.data_root,
                "experiment": self.experiment.model_dump(mode="json"),
            }
        )

    @classmethod
    def from_line(cls, line: str, where: str) -> Cell:
        """Raises InputError for another version, damaged JSON, or an id that does not fit."""
        return cls.from_read(
            parse_manifest_line(parse_object(line, where, "one cell a line"), where)
        )

    @classmethod
    def from_read(cls, line: ManifestLine) -> Cell:
        """Raises InputError for an experiment that does not fit, or not its id."""
        try:
            experiment = Experiment.model_validate(line.raw["experiment"])
        except ValidationError as error:
            raise input_error(error, line.where, Experiment) from None
        data_root = line.raw.get("data_root")
        if not isinstance(data_root, str | None):
            raise InputError(line.where, "data_root", repr(data_root), "a folder or null")
        cell = cls(line.array, line.index, experiment, data_root)
        if cell.id != line.id:
            raise InputError(line.where, "id", line.id, f"{cell.id}, which its content gives")
        return cell


def array_name(experiment: Experiment) -> str:
    """Model and layout; and the engine, where its processes are others than the layout's."""
    name = f"{experiment.model.label}-{experiment.layout}"
    one_process = experiment.process_layout != experiment.layout
    return f"{name}-{experiment.engine}" if one_process else name


def assign_indices(
    experiments: Iterable[Experiment],
    data_root: str | None = None,
    existing: Iterable[Cell] = (),
) -> list[Cell]:
    """Give each new experiment the next index of its array; those in `existing` are left out."""
    known = {cell.id for cell in existing}
    following: dict[str, int] = {}
    for cell in existing:
        following[cell.array] = max(following.get(cell.array, 0), cell.index + 1)
    cells: list[Cell] = []
    for experiment in experiments:
        if experiment.id in known:
            continue
        known.add(experiment.id)
        array = array_name(experiment)
        index = following.get(array, 0)
        following[array] = index + 1
        cells.append(Cell(array, index, experiment, data_root))
    return cells


def write_manifest(path: Path, cells: Iterable[Cell]) -> None:
    """Raises FileExistsError if there is one: a manifest is never rewritten."""
    with path.open("x", encoding="utf-8") as stream:
        stream.writelines(cell.to_line() + "\n" for cell in cells)


def read_manifest(path: Path) -> list[Cell]:
    """All cells, in order; raises InputError as `read_manifest_lines` and `Cell.from_read` do."""
    return [Cell.from_read(line) for line in read_manifest_lines(path)]


def find_cell(path: Path, array: str, index: int) -> Cell:
    """The cell that an array task runs; other cells' lines are not looked at where it is found.

    Raises InputError for an index out of range, for a cell that is there twice, and as
    `Cell.from_read` does.
    """
    line = find_manifest_line(path, array, index)
    if line is not None:
        return Cell.from_read(line)
    every = read_manifest_lines(path)
    indices = [each.index for each in every if each.array == array]
    if not indices:
        names = sorted({each.array for each in every})
        raise InputError(path, "array", array, ", ".join(names))
    raise InputError(path, f"index of {array}", index, f"0 to {max(indices)}")
