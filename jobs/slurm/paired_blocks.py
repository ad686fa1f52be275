"""Paired blocks: the cells of a model that share seed and repeat run in one job, in random order.

arrays/<model>-paired.cells lists them in that order, in a tab-separated table with a head, for the
block's script, for `status` and for people.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from gnnhpc.core.errors import InputError
from gnnhpc.core.run_paths import RunPaths
from gnnhpc.experiment.manifest import Cell
from jobs.slurm.job_array import PAIRED, JobArray, Task

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


def blocks_with(blocks: Mapping[str, list[Task]], chosen: Iterable[Cell]) -> dict[str, list[Task]]:
    """The whole blocks that hold any of the chosen cells, by the name of their array.

    Raises InputError for a cell that is in no block.
    """
    keys = {cell.key for cell in chosen}
    kept = {
        name: [task for task in tasks if any(cell.key in keys for cell in task.cells)]
        for name, tasks in blocks.items()
    }
    held = {cell.key for tasks in kept.values() for task in tasks for cell in task.cells}
    for array, index in sorted(keys - held):
        found = f"{array} {index}, which is in no block"
        raise InputError("--paired", None, found, "a run that was submitted with --paired")
    return {name: tasks for name, tasks in kept.items() if tasks}


def read_blocks(paths: RunPaths, cells: Iterable[Cell]) -> dict[str, list[Task]]:
    """The blocks of a run with these cells, by the name of their array; none without --paired.

    InputError names the damaged line of a table.
    """
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
    return found


def block_table(array: JobArray) -> str:
    """The table of an array of blocks."""
    rows = [
        (task.number, cell.array, cell.index, cell.world_size, cell.id)
        for task in array.tasks
        for cell in task.cells
    ]
    return "".join("\t".join(map(str, row)) + "\n" for row in (_HEAD, *rows))
