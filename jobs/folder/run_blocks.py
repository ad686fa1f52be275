"""The blocks of a run: drawn once for its cells, and kept in the tables beside its scripts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from gnnhpc.core.errors import InputError
from gnnhpc.experiment.manifest import Cell
from gnnhpc.records.block_table import BlockLine, block_table_text, read_block_tables
from gnnhpc.records.run_paths import RunPaths, write_atomically
from jobs.cluster.blocks import Block, BlockArray, draw_blocks

Key = tuple[str, int]
"""Array and index of a cell."""


@dataclass(frozen=True)
class RunBlocks:
    """Which cells a run's blocks have, in their order."""

    tables: Mapping[str, Sequence[BlockLine]] = field(default_factory=dict)
    """By the array of blocks."""

    @cached_property
    def _lines(self) -> dict[Key, list[BlockLine]]:
        found: dict[Key, list[BlockLine]] = {}
        for name, lines in self.tables.items():
            for line in lines:
                found.setdefault((name, line.block), []).append(line)
        return found

    @cached_property
    def _numbers(self) -> dict[tuple[str, Key], int]:
        return {
            (name, (line.array, line.index)): line.block
            for name, lines in self.tables.items()
            for line in lines
        }

    @property
    def in_blocks(self) -> set[Key]:
        """The cells that blocks hold."""
        return {key for _, key in self._numbers}

    def lines(self, array: str, block: int) -> list[BlockLine]:
        """The cells of a block, in their order; none of what is no block."""
        return self._lines.get((array, block), [])

    def keys(self, array: str, index: int) -> list[Key]:
        """The cells that a task of this array runs: those of a block, or its own."""
        found = [(line.array, line.index) for line in self.lines(array, index)]
        return found or [(array, index)]

    def index(self, array: str, key: Key) -> int:
        """The index under which an array, of blocks or not, has a cell."""
        return self._numbers.get((array, key), key[1])

    def arrays_with(self, wanted: Iterable[Cell], cells: Iterable[Cell]) -> list[BlockArray]:
        """The blocks that hold any of the wanted cells, whole, from all `cells` of the run.

        Raises InputError for a cell that no block holds.
        """
        by_key = {(cell.array, cell.index): cell for cell in cells}
        block_of = {key: (name, number) for (name, key), number in self._numbers.items()}
        chosen: set[Key] = set()
        for cell in wanted:
            key = (cell.array, cell.index)
            if key not in block_of:
                found = f"{cell.array} {cell.index}, which no block holds"
                raise InputError("--paired", None, found, "a run that was submitted with --paired")
            chosen.add(block_of[key])
        return [
            BlockArray(
                name,
                tuple(
                    Block(number, tuple(by_key[key] for key in self.keys(name, number)))
                    for number in sorted(number for other, number in chosen if other == name)
                ),
            )
            for name in self.tables
            if any(other == name for other, _ in chosen)
        ]


def read_blocks(paths: RunPaths) -> RunBlocks:
    """Raises InputError for a damaged table; a run without blocks has no table."""
    return RunBlocks(read_block_tables(paths))


def add_blocks(paths: RunPaths, cells: Collection[Cell]) -> RunBlocks:
    """Draw blocks for these cells, after those that the run has; returns all."""
    tables = {name: list(lines) for name, lines in read_block_tables(paths).items()}
    taken = {name: 1 + max(line.block for line in lines) for name, lines in tables.items()}
    for array in draw_blocks(cells, taken):
        lines = tables.setdefault(array.name, [])
        for block in array.blocks:
            lines += [_line(block.number, cell) for cell in block.cells]
        write_atomically(paths.block_table(array.name), block_table_text(lines))
    return RunBlocks(tables)


def _line(block: int, cell: Cell) -> BlockLine:
    ranks = cell.experiment.process_layout.world_size
    return BlockLine(block, cell.array, cell.index, ranks, cell.id)
