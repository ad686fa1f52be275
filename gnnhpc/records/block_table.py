"""arrays/<model>-paired.cells: the cells of each block of a run, in the order they are measured.

A tab-separated table with a head, for the block's script, for `status` and for whoever looks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from gnnhpc.core.errors import InputError
from gnnhpc.records.run_paths import RunPaths


@dataclass(frozen=True)
class BlockLine:
    """One cell of a block."""

    block: int
    array: str
    index: int
    ranks: int
    cell: str
    """The cell's id."""


_HEAD = tuple(field.name for field in fields(BlockLine))


def block_table_text(lines: Iterable[BlockLine]) -> str:
    """The table as a file has it."""
    rows = [_HEAD, *(astuple(line) for line in lines)]
    return "".join("\t".join(map(str, row)) + "\n" for row in rows)


def read_block_tables(paths: RunPaths) -> dict[str, list[BlockLine]]:
    """The lines of each table of a run, by the name of the array of blocks, such as vig-paired.

    Empty where cells were not submitted in blocks. Raises InputError naming a damaged line.
    """
    return {path.stem: read_block_table(path) for path in sorted(paths.arrays.glob("*.cells"))}


def read_block_table(path: Path) -> list[BlockLine]:
    """Raises InputError for a table that cannot be read, and for a line that is damaged."""
    try:
        rows = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise InputError(path, None, f"unreadable ({error})", "a table of blocks") from None
    if not rows or tuple(rows[0].split("\t")) != _HEAD:
        raise InputError(f"{path}:1", None, "another head", " ".join(_HEAD))
    return [_line(row, f"{path}:{number}") for number, row in enumerate(rows[1:], 2)]


def _line(row: str, where: str) -> BlockLine:
    words = row.split("\t")
    numbers = [words[at] for at in (0, 2, 3)] if len(words) == len(_HEAD) else [""]
    if not all(number.isdecimal() for number in numbers):
        raise InputError(where, None, repr(row), " ".join(_HEAD))
    block, index, ranks = map(int, numbers)
    return BlockLine(block, words[1], index, ranks, words[4])
