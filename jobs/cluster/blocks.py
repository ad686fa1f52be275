"""Blocks: the cells of one model and repeat, measured one after the other on the same nodes.

Speedups are then ratios of runs that shared their nodes and their hour. Pure functions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gnnhpc.core.layout import Layout
from gnnhpc.experiment.manifest import Cell
from jobs.cluster.arrays import Array, Resources, group_by_array, part_label, resources_for
from jobs.cluster.site import Site


@dataclass(frozen=True)
class Block:
    """Cells that one job measures, in the order drawn for them."""

    number: int
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class BlockArray:
    """The blocks of one model: one Slurm job array, or a part of them."""

    name: str
    blocks: tuple[Block, ...]
    offset: int = 0
    """Number of the block that task 0 runs."""

    @property
    def label(self) -> str:
        """The name of the part's script and, before the @, of its jobs."""
        return part_label(self.name, self.offset)

    @property
    def indices(self) -> list[int]:
        return [block.number for block in self.blocks]

    @property
    def tasks(self) -> list[int]:
        """Slurm's task ids of the blocks."""
        return [number - self.offset for number in self.indices]

    @property
    def cells(self) -> list[Cell]:
        return [cell for block in self.blocks for cell in block.cells]

    @property
    def layouts(self) -> list[tuple[Layout, Layout]]:
        """Of all cells, each with the layout of its processes."""
        found = ((c.experiment.layout, c.experiment.process_layout) for c in self.cells)
        return list(dict.fromkeys(found))

    @property
    def gpu(self) -> bool:
        return any(cell.experiment.device == "gpu" for cell in self.cells)


def block_array_name(cell: Cell) -> str:
    """The array of blocks that a cell belongs to; no layout is called `paired`."""
    return f"{cell.experiment.model.label}-paired"


def draw_blocks(cells: Iterable[Cell], taken: Mapping[str, int] | None = None) -> list[BlockArray]:
    """Blocks of all cells of a model that share seed and repeat, numbered in that order.

    `taken` says how many blocks an array has already: those keep their numbers and cells, and new
    ones follow. The order within a block comes from its cells' ids alone.
    """
    together: dict[str, dict[tuple[int, int], list[Cell]]] = {}
    for cell in cells:
        turn = (cell.experiment.seed, cell.experiment.repeat)
        together.setdefault(block_array_name(cell), {}).setdefault(turn, []).append(cell)
    return [
        BlockArray(
            name,
            tuple(
                Block(number, _drawn(turns[turn]))
                for number, turn in enumerate(sorted(turns), (taken or {}).get(name, 0))
            ),
        )
        for name, turns in together.items()
    ]


def _drawn(cells: Iterable[Cell]) -> tuple[Cell, ...]:
    """By digests, which are as good as drawn, and the same for every version of Python."""
    known = sorted(cells, key=lambda cell: cell.id)
    of_block = " ".join(cell.id for cell in known)
    return tuple(sorted(known, key=lambda cell: _digest(f"{cell.id} of {of_block}")))


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def in_parts(arrays: Iterable[BlockArray], limit: int) -> list[BlockArray]:
    """The same blocks in arrays of at most so many tasks."""
    parts: dict[tuple[str, int], list[Block]] = {}
    for array in arrays:
        for block in array.blocks:
            parts.setdefault((array.name, block.number // limit * limit), []).append(block)
    return [BlockArray(name, tuple(blocks), offset) for (name, offset), blocks in parts.items()]


def needs_of(array: Array | BlockArray, site: Site) -> Resources:
    """What one task of an array is given; a block the nodes of the cell with the most processes,
    the most GPUs a node that any takes, and the time that the site gives a cell for each of them.

    Raises InputError if the tasks a node do not divide a layout's ranks.
    """
    if isinstance(array, Array):
        return resources_for(array.layout, site, processes=array.processes, gpu=array.gpu)
    each = [
        resources_for(layout, site, processes=processes, gpu=array.gpu)
        for layout, processes in array.layouts
    ]
    largest = max(each, key=lambda needs: needs.tasks)
    gpus = [needs.gpus_per_node for needs in each if needs.gpus_per_node is not None]
    longest = max(len(block.cells) for block in array.blocks)
    time_min = largest.time_min * longest
    return replace(largest, time_min=time_min, gpus_per_node=max(gpus, default=None))


def arrays_of(
    cells: Sequence[Cell], limit: int, *, paired: bool
) -> Sequence[Array] | Sequence[BlockArray]:
    """The arrays of a new run: of its cells, or of blocks drawn for them."""
    return in_parts(draw_blocks(cells), limit) if paired else group_by_array(cells, limit)
