"""The logs of a cell: of its ranks, and of the job that starts them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gnnhpc.core.errors import InputError
from gnnhpc.core.run_paths import RunPaths
from gnnhpc.experiment.manifest import Cell, read_manifest
from gnnhpc.records.failures import recorded_cause
from jobs.run.attempt_files import lines_from_the_end, memory_cause, newest_job_log
from jobs.run.run_state import open_run


def open_cell(run: str | Path, name: str, rank: int | None) -> tuple[RunPaths, Cell]:
    """The run and its cell of this name; raises InputError for an unknown cell or rank."""
    paths = open_run(run)
    cell = _cell_named(read_manifest(paths.manifest), name)
    if rank is not None and not 0 <= rank < cell.world_size:
        raise InputError("--rank", None, rank, f"0 to {cell.world_size - 1}")
    return paths, cell


def _cell_named(cells: Sequence[Cell], name: str) -> Cell:
    """The cell with this id, start of an id, or array:index; raises InputError unless it is one."""
    array, colon, index = name.rpartition(":")
    if colon:
        found = [cell for cell in cells if (cell.array, str(cell.index)) == (array, index)]
    else:
        found = [cell for cell in cells if cell.id == name]
        found = found or [cell for cell in cells if cell.id.startswith(name)]
    if len(found) == 1:
        return found[0]
    what = f"{name!r}, which {len(found)} cells begin with" if found else repr(name)
    example = f"{cells[0].array}:{cells[0].index} or {cells[0].id}"
    raise InputError("CELL", None, what, f"a cell's id or array:index, such as {example}")


def find_log(run: str | Path, name: str, rank: int | None) -> Path:
    """The newest log of one rank: of `rank`, else of the first rank that failed, else of rank 0.

    It is the log of the cell's job where that is empty or missing, and where Slurm says in it that
    it killed a rank for its memory. Raises InputError for an unknown cell or rank, and for a cell
    that was never started.
    """
    paths, cell = open_cell(run, name, rank)
    attempts = paths.cell(cell.id).attempts()
    log_of_job = newest_job_log(paths, cell.array, cell.index)
    if log_of_job and rank is None and memory_cause(lines_from_the_end(log_of_job)):
        return log_of_job
    if attempts:
        chosen = attempts[-1]
        failure = recorded_cause(chosen, cell.world_size) if rank is None else None
        log = chosen.log(rank or (failure.rank if failure else 0))
        if log.is_file() and log.stat().st_size:
            return log
    if log_of_job is None:
        found = f"no log of {cell.array} {cell.index}"
        raise InputError(paths.logs, None, found, "a cell that was started")
    return log_of_job


def read_log(path: Path) -> bytes:
    """All of a log; nothing for a file that is missing."""
    try:
        return path.read_bytes()
    except OSError:
        return b""
