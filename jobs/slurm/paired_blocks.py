"""arrays/<model>-paired.cells: the cells of each paired block, in the order in which they run.

A tab-separated table with a head, for the block's script, for `status` and for people.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, field, fields
from functools import cached_property

from pydantic import TypeAdapter, ValidationError

from gnnhpc.core.errors import InputError
from gnnhpc.core.run_paths import RunPaths
from gnnhpc.core.versioned_json import write_atomically
from gnnhpc.experiment.manifest import Cell
from jobs.slurm.job_array import Task

Key = tuple[str, int]
"""Array and index of a cell."""


@dataclass(frozen=True)
class BlockLine:
    """One cell of a block."""

    block: int
    array: str
    index: int
    ranks: int
    cell: str
    """The cell's id."""

    @property
    def key(self) -> Key:
        return self.array, self.index


_HEAD = tuple(each.name for each in fields(BlockLine))
_LINE = TypeAdapter(BlockLine)


@dataclass(frozen=True)
class Blocks:
    """The paired blocks of a run; without any every task of an array runs one cell."""

    tables: Mapping[str, list[BlockLine]] = field(default_factory=dict)
    """Lines of each array of blocks."""

    @classmethod
    def of(cls, blocks: Mapping[str, Iterable[Task]]) -> Blocks:
        """The tables of these blocks, by the names of their arrays."""
        return cls({
            name: [
                BlockLine(task.number, cell.array, cell.index, cell.world_size, cell.id)
                for task in tasks
                for cell in task.cells
            ]
            for name, tasks in blocks.items()
        })  # fmt: skip

    @cached_property
    def _keys(self) -> dict[Key, list[Key]]:
        found: dict[Key, list[Key]] = {}
        for name, lines in self.tables.items():
            for line in lines:
                found.setdefault((name, line.block), []).append(line.key)
        return found

    @cached_property
    def block_of(self) -> dict[Key, Key]:
        """Cell -> the array and number of its block."""
        return {key: block for block, keys in self._keys.items() for key in keys}

    def keys(self, array: str, number: int) -> list[Key]:
        """The cells that a task of an array runs."""
        return self._keys.get((array, number), [(array, number)])

    def number(self, array: str, key: Key) -> int:
        """The number under which an array runs a cell: that of its block, or its own index."""
        block = self.block_of.get(key)
        return block[1] if block is not None and block[0] == array else key[1]

    def with_cells(self, chosen: Iterable[Cell], cells: Iterable[Cell]) -> dict[str, list[Task]]:
        """The whole blocks that hold any of the chosen cells, from all `cells` of the run.

        Raises InputError for a cell that is in no block.
        """
        by_key = {(cell.array, cell.index): cell for cell in cells}
        needed: set[Key] = set()
        for cell in chosen:
            block = self.block_of.get((cell.array, cell.index))
            if block is None:
                found = f"{cell.array} {cell.index}, which is in no block"
                raise InputError("--paired", None, found, "a run that was submitted with --paired")
            needed.add(block)
        blocks: dict[str, list[Task]] = {}
        for name, number in sorted(needed):
            task = Task(number, tuple(by_key[key] for key in self.keys(name, number)))
            blocks.setdefault(name, []).append(task)
        return blocks


def read_blocks(paths: RunPaths) -> Blocks:
    """Raises InputError naming the damaged line of a table."""
    tables: dict[str, list[BlockLine]] = {}
    for path in sorted(paths.arrays.glob("*.cells")):
        try:
            head, *rows = path.read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError) as error:
            raise InputError(path, None, f"unreadable ({error})", "a table of blocks") from None
        if tuple(head.split("\t")) != _HEAD:
            raise InputError(f"{path}:1", None, "another head", " ".join(_HEAD))
        tables[path.stem] = [_line(row, f"{path}:{place}") for place, row in enumerate(rows, 2)]
    return Blocks(tables)


def write_blocks(paths: RunPaths, blocks: Blocks) -> None:
    """Write the table of each array of blocks."""
    for name, lines in blocks.tables.items():
        rows = [_HEAD, *(astuple(line) for line in lines)]
        text = "".join("\t".join(map(str, row)) + "\n" for row in rows)
        write_atomically(paths.block_table(name), text)


def _line(row: str, where: str) -> BlockLine:
    try:
        return _LINE.validate_python(dict(zip(_HEAD, row.split("\t"), strict=True)))
    except (ValueError, ValidationError):
        raise InputError(where, None, repr(row), " ".join(_HEAD)) from None
