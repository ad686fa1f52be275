"""The manifest: one cell a line, with all that is needed to run it; never rewritten."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from gnnhpc.core.errors import InputError
from gnnhpc.core.pydantic_errors import input_error
from gnnhpc.spec.experiment import Experiment

MANIFEST_VERSION = 1


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
    def from_line(cls, line: str, where: object) -> Cell:
        """Raises InputError for another version, damaged JSON, or an id that does not fit."""
        try:
            raw = json.loads(line)
        except json.JSONDecodeError as error:
            raise InputError(
                where, None, f"damaged JSON ({error.msg})", "one cell a line"
            ) from None
        if not isinstance(raw, dict) or raw.get("version") != MANIFEST_VERSION:
            found = raw.get("version") if isinstance(raw, dict) else type(raw).__name__
            raise InputError(where, "version", found, str(MANIFEST_VERSION))
        missing = {"array", "index", "id", "experiment"} - raw.keys()
        if missing:
            raise InputError(where, sorted(missing)[0], "nothing", "a value")
        index = raw["index"]
        if not isinstance(index, int) or isinstance(index, bool) or index < 0:
            raise InputError(where, "index", repr(index), "a whole number from 0")
        try:
            experiment = Experiment.model_validate(raw["experiment"])
        except ValidationError as error:
            raise input_error(error, where, Experiment) from None
        cell = cls(str(raw["array"]), index, experiment, raw.get("data_root"))
        if cell.id != raw["id"]:
            raise InputError(where, "id", raw["id"], f"{cell.id}, which its content gives")
        return cell


def array_name(experiment: Experiment) -> str:
    return f"{experiment.model.label}-{experiment.layout}"


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
    """All cells, in order; raises InputError naming file and line."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(path, None, "no such file", "the manifest.jsonl of a run") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(path, None, f"unreadable ({error})", "one cell a line") from None
    lines = text.splitlines()
    return [Cell.from_line(line, f"{path}:{n}") for n, line in enumerate(lines, 1) if line.strip()]


def find_cell(path: Path, array: str, index: int) -> Cell:
    """The cell that an array task runs; raises InputError for an index out of range."""
    cells = [cell for cell in read_manifest(path) if cell.array == array]
    if not cells:
        names = sorted({cell.array for cell in read_manifest(path)})
        raise InputError(path, "array", array, ", ".join(names))
    for cell in cells:
        if cell.index == index:
            return cell
    highest = max(cell.index for cell in cells)
    raise InputError(path, f"index of {array}", index, f"0 to {highest}")
