"""Paired blocks: the cells of a model that share seed and repeat run in one job, in random order.

arrays/<model>-paired.cells lists them in that order, in a tab-separated table with a head, for the
block's script, for `status` and for people.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from gnnhpc.core.errors import InputError
from gnnhpc.core.run_paths import RunPaths
from gnnhpc.core.versioned_json import write_atomically
from gnnhpc.experiment.manifest import Cell
from jobs.slurm.job_array import PAIRED, JobArray, Task

Key = tuple[str, int]
"""Array and index of a cell, or array and number of a block."""
_HEAD = ("block", "array", "index", "ranks", "cell")


def pair_cells(cells: Iterable[Cell]) -> dict[str, list[Task]]:
    """Blocks of all cells of a model that share seed and repeat, by the name of their array.

    The order of the cells in a block is random: it comes from a digest of their ids.
    """
    together: dict[str, dict[tuple[int, int], list[Cell]]] = {}
    for cell in cells:
        experiment = cell.experiment
        blocks = together.setdefault(f"{experiment.model.label}{PAIRED}", {})
        blocks.setdefault((experiment.seed, experiment.repeat), []).append(cell)
    return {
        name: [Task(number, _shuffled(blocks[key])) for number, key in enumerate(sorted(blocks))]
        for name, blocks in together.items()
    }


def _shuffled(cells: Iterable[Cell]) -> tuple[Cell, ...]:
    known = {cell.id: cell for cell in cells}
    block = " ".join(sorted(known))
    digests = {hashlib.sha256(f"{each} of {block}".encode()).digest(): each for each in known}
    return tuple(known[digests[digest]] for digest in sorted(digests))


@dataclass(frozen=True)
class Blocks:
    """The paired blocks of a run; without any every task of an array runs one cell."""

    tasks: Mapping[str, list[Task]] = field(default_factory=dict)
    """The blocks of each array."""

    @cached_property
    def _keys(self) -> dict[Key, list[Key]]:
        return {
            (name, task.number): [cell.key for cell in task.cells]
            for name, tasks in self.tasks.items()
            for task in tasks
        }

    @cached_property
    def _of_cell(self) -> dict[Key, Key]:
        return {key: block for block, keys in self._keys.items() for key in keys}

    def keys(self, array: str, number: int) -> list[Key]:
        """The cells that a task of an array runs."""
        return self._keys.get((array, number), [(array, number)])

    def number(self, array: str, key: Key) -> int:
        """The number under which an array runs a cell: that of its block, or its own index."""
        name, number = self._of_cell.get(key, key)
        return number if name == array else key[1]

    def with_cells(self, chosen: Iterable[Cell]) -> dict[str, list[Task]]:
        """The whole blocks that hold any of the chosen cells.

        Raises InputError for a cell that is in no block.
        """
        needed = set()
        for cell in chosen:
            if cell.key not in self._of_cell:
                found = f"{cell.array} {cell.index}, which is in no block"
                raise InputError("--paired", None, found, "a run that was submitted with --paired")
            needed.add(self._of_cell[cell.key])
        kept = {
            name: [task for task in tasks if (name, task.number) in needed]
            for name, tasks in self.tasks.items()
        }
        return {name: tasks for name, tasks in kept.items() if tasks}


def read_blocks(paths: RunPaths, cells: Iterable[Cell]) -> Blocks:
    """The blocks of a run with these cells; InputError names the damaged line of a table."""
    known = {cell.key: cell for cell in cells}
    found: dict[str, list[Task]] = {}
    for path in sorted(paths.arrays.glob("*.cells")):
        rows = path.read_text(encoding="utf-8").splitlines()
        blocks: dict[int, list[Cell]] = {}
        for line, row in enumerate(rows[1:], 2):
            try:
                block, array, index, *_ = row.split("\t")
                blocks.setdefault(int(block), []).append(known[array, int(index)])
            except (ValueError, KeyError):
                allowed = f"{' '.join(_HEAD)} of a cell in manifest.jsonl"
                raise InputError(f"{path}:{line}", None, repr(row), allowed) from None
        found[path.stem] = [Task(number, tuple(some)) for number, some in blocks.items()]
    return Blocks(found)


def write_blocks(paths: RunPaths, array: JobArray) -> None:
    """Write the table of an array of blocks."""
    rows = [
        (task.number, cell.array, cell.index, cell.world_size, cell.id)
        for task in array.tasks
        for cell in task.cells
    ]
    text = "".join("\t".join(map(str, row)) + "\n" for row in (_HEAD, *rows))
    write_atomically(paths.block_table(array.name), text)
