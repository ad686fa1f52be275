"""The logs of a cell: of its ranks, and of the job that starts them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from gnnhpc.core.errors import InputError, print_note
from gnnhpc.core.run_paths import RunPaths
from gnnhpc.experiment.manifest import Cell, read_manifest
from gnnhpc.records.failures import recorded_cause
from jobs.run.attempt_files import lines_from_the_end, memory_cause, newest_job_log
from jobs.run.cell_state import MAY_RUN, CellState
from jobs.run.run_state import open_run
from jobs.run.status import status

READ_S = 1.0
"""Pause between two readings of the logs."""
ASK_S = 11.0
"""Pause between two questions about the cell's state, each of which asks Slurm."""


def open_cell(run: str | Path, name: str, rank: int | None) -> tuple[RunPaths, Cell]:
    """The run and its cell with this id or array:index.

    Raises InputError for an unknown cell or rank.
    """
    paths = open_run(run)
    cells = {
        known: cell
        for cell in read_manifest(paths.manifest)
        for known in (f"{cell.array}:{cell.index}", cell.id)
    }
    if name not in cells:
        allowed = f"a cell's id or array:index, such as {' or '.join(list(cells)[:2])}"
        raise InputError("CELL", None, repr(name), allowed)
    cell = cells[name]
    if rank is not None and not 0 <= rank < cell.world_size:
        raise InputError("--rank", None, rank, f"0 to {cell.world_size - 1}")
    return paths, cell


def find_log(paths: RunPaths, cell: Cell, rank: int | None) -> Path:
    """The newest log of one rank: of `rank`, else of the first rank that failed, else of rank 0.

    It is the log of the cell's job where that is empty or missing, and where Slurm says in it that
    it killed a rank for its memory. Raises InputError for a cell that was never started.
    """
    attempts = paths.cell(cell.id).attempts()
    log_of_job = newest_job_log(paths, cell.array, cell.index)
    if log_of_job and rank is None and memory_cause(lines_from_the_end(log_of_job)):
        return log_of_job
    if attempts:
        failure = recorded_cause(attempts[-1], cell.world_size) if rank is None else None
        log = attempts[-1].log(rank or (failure.rank if failure else 0))
        if log.is_file() and log.stat().st_size:
            return log
    if log_of_job is None:
        found = f"no log of {cell.array} {cell.index}"
        raise InputError(paths.logs, None, found, "a cell that was started")
    return log_of_job


def follow(paths: RunPaths, cell: Cell, rank: int | None, show: Callable[[str], None]) -> CellState:
    """Show new lines of a cell's logs until it has ended; returns its last state.

    It begins with the last ten lines. A note is printed whenever the state changes.
    """
    noted, ask_at, offsets = "", 0.0, dict[Path, int]()
    for path in _growing_logs(paths, cell, rank).values():
        lines = path.read_bytes().splitlines(keepends=True) if path.is_file() else []
        offsets[path] = sum(map(len, lines[:-10]))

    def show_new() -> None:
        """Show the whole lines since the last call: `job: ` or the rank comes before each."""
        for label, path in _growing_logs(paths, cell, rank).items():
            offset = offsets.get(path, 0)
            data = path.read_bytes()[offset:] if path.is_file() else b""
            whole = data[: data.rfind(b"\n") + 1]
            offsets[path] = offset + len(whole)
            for line in whole.decode(errors="replace").splitlines():
                show(f"{label}: {line}")

    while True:
        show_new()
        if time.monotonic() < ask_at:
            time.sleep(READ_S)
            continue
        current = next(one for one in status(paths.root).cells if one.cell == cell.id)
        ask_at = time.monotonic() + ASK_S
        if noted != current.state:
            noted = current.state
            why = f": {current.detail}" if current.detail else ""
            print_note(f"{cell.array} {cell.index}: {current.state}{why}")
        if current.state not in MAY_RUN:
            # The result is written a moment before the ranks and their job end.
            time.sleep(READ_S)
            show_new()
            return current


def _growing_logs(paths: RunPaths, cell: Cell, rank: int | None) -> dict[str, Path]:
    """The newest job's log and the newest attempt's logs of its ranks, by what they are called."""
    attempts = paths.cell(cell.id).attempts()
    job = newest_job_log(paths, cell.array, cell.index)
    found = {} if job is None else {"job": job}
    if attempts:
        ranks = range(cell.world_size) if rank is None else (rank,)
        found |= {str(number): attempts[-1].log(number) for number in ranks}
    return found
