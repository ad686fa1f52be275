"""The logs of a cell: of its ranks, and of the job that starts them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from gnnhpc.core.errors import InputError
from gnnhpc.core.run_paths import RunPaths
from gnnhpc.experiment.manifest import Cell, read_manifest
from gnnhpc.records.attempts import read_attempts
from gnnhpc.records.failures import recorded_cause
from jobs.run.open_run import open_run
from jobs.run.run_state import find_cell_named
from jobs.run.states import MAY_RUN, CellState
from jobs.run.status import status

READ_S = 1.0
"""Pause between two readings of the logs."""
ASK_S = 11.0
"""Pause between two questions about the cell's state; Slurm's answers are kept for ten seconds."""
_ENDED_FOR_GOOD = ("done", "flagged", "failed", "cancelled", "out of memory", "missing")
"""In other states Slurm may queue the cell again a moment later."""
_BLOCK_BYTES = 64 * 1024


def open_cell(run: str | Path, name: str, rank: int | None) -> tuple[RunPaths, Cell]:
    """The run and its cell of this name; raises InputError for an unknown cell or rank."""
    paths = open_run(run)
    cell = find_cell_named(read_manifest(paths.manifest), name)
    if rank is not None and not 0 <= rank < cell.world_size:
        raise InputError("--rank", None, rank, f"0 to {cell.world_size - 1}")
    return paths, cell


def find_log(run: str | Path, name: str, rank: int | None, attempt: int | None) -> Path:
    """The log of one rank: of `rank`, else of the first rank that failed, else of rank 0.

    Where the ranks have none it is the log of the cell's job. Raises InputError for an unknown
    cell, attempt or rank, and for a cell that was never started.
    """
    paths, cell = open_cell(run, name, rank)
    attempts = {one.number: one for one in paths.cell(cell.id).attempts()}
    if attempt is not None and attempt not in attempts:
        allowed = ", ".join(map(str, attempts)) or "none, the cell was never started"
        raise InputError("--attempt", None, attempt, allowed)
    if attempts:
        chosen = attempts[attempt or max(attempts)]
        if rank is None:
            failure = recorded_cause(chosen, cell.world_size)
            rank = failure.rank if failure else 0
        if (log := chosen.log(rank)).is_file():
            return log
    log_of_job = _newest_job_log(paths, cell)
    if log_of_job is None:
        found = f"no log of {cell.array} {cell.index}"
        raise InputError(paths.logs, None, found, "a cell that was started")
    return log_of_job


def _newest_job_log(paths: RunPaths, cell: Cell) -> Path | None:
    """The log of the newest job of this cell, from before its ranks opened their own logs."""
    logs = list(paths.logs.glob(f"{cell.array}-{cell.index}-*.log"))
    return max(logs, key=lambda path: path.stat().st_mtime, default=None)


def follow(
    paths: RunPaths,
    cell: Cell,
    rank: int | None,
    lines: int,
    show: Callable[[list[str]], None],
    notify: Callable[[str], None],
) -> CellState:
    """Show new lines of a cell's logs until it has ended; returns its last state.

    It begins with the last `lines` lines. `notify` is called whenever state or attempt change.
    """
    logs = _CellLogs(paths, cell, rank, lines)
    known: tuple[str, int | None] | None = None
    asked, had_result, ended_before = -ASK_S, False, False
    while True:
        show(logs.new_lines())
        has_result = logs.has_result()
        if time.monotonic() - asked < ASK_S and has_result == had_result:
            time.sleep(READ_S)
            continue
        states = {one.cell: one for one in status(paths.root).cells}
        current = states[cell.id]
        asked, had_result = time.monotonic(), has_result
        if known != (current.state, logs.attempt):
            known = (current.state, logs.attempt)
            which = "" if logs.attempt is None else f", attempt {logs.attempt}"
            why = f": {current.detail}" if current.detail else ""
            notify(f"{cell.array} {cell.index}{which}: {current.state}{why}")
        ended = current.state not in MAY_RUN
        if current.state in _ENDED_FOR_GOOD or (ended and ended_before):
            # The result is written a moment before the ranks and their job end.
            time.sleep(READ_S)
            show(logs.new_lines(ended=True))
            return current
        ended_before = ended


class _CellLogs:
    """The newest attempt's rank logs and the newest job's log of one cell."""

    def __init__(self, paths: RunPaths, cell: Cell, rank: int | None, lines: int) -> None:
        self.paths, self.cell = paths, cell
        self.ranks = range(cell.world_size) if rank is None else (rank,)
        self.attempt: int | None = None
        self._job: Path | None = None
        self._logs: dict[str, GrowingLog] = {}
        self._find_logs(lines)

    def new_lines(self, *, ended: bool = False) -> list[str]:
        """Lines since the last call: `job: ` before those of the job, `0: ` before rank 0's."""
        found = self._read(ended=ended)
        if self._find_logs(None):
            found += self._read(ended=ended)
        return found

    def has_result(self) -> bool:
        attempts = self.paths.cell(self.cell.id).attempts()
        return bool(attempts) and attempts[-1].result.exists()

    def _read(self, *, ended: bool) -> list[str]:
        return [
            f"{label}: {line}"
            for label, log in self._logs.items()
            for line in log.new_lines(ended=ended)
        ]

    def _find_logs(self, lines: int | None) -> bool:
        """Whether there is a newer job or attempt; its logs are read from now on."""
        before = self.attempt, self._job
        job = _newest_job_log(self.paths, self.cell)
        attempts = read_attempts(self.paths.cell(self.cell.id))
        if job is not None and job != self._job:
            self._job = job
            ranks = {label: log for label, log in self._logs.items() if label != "job"}
            self._logs = {"job": GrowingLog(job, lines), **ranks}
        if attempts and attempts[-1].number != self.attempt:
            self.attempt = attempts[-1].number
            for rank in self.ranks:
                self._logs[str(rank)] = GrowingLog(attempts[-1].paths.log(rank), lines)
        return before != (self.attempt, self._job)


class GrowingLog:
    """A file that others write, read from some line on as it grows; it need not exist yet."""

    def __init__(self, path: Path, lines: int | None = None) -> None:
        """Begins with the file's last `lines` lines; None begins with its first."""
        self.path = path
        self._offset = 0 if lines is None else offset_of_last_lines(path, lines)
        self._rest = b""

    def new_lines(self, *, ended: bool = False) -> list[str]:
        """Lines that were completed since the last call; with `ended` also an incomplete one."""
        try:
            with self.path.open("rb") as stream:
                if self._offset > stream.seek(0, os.SEEK_END):
                    self._offset, self._rest = 0, b""
                stream.seek(self._offset)
                data = stream.read()
        except OSError:
            data = b""
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if ended and self._rest:
            lines, self._rest = [*lines, self._rest], b""
        return [line.decode(errors="replace").rstrip("\r") for line in lines]


def offset_of_last_lines(path: Path, lines: int) -> int:
    """Where the last `lines` lines of a file begin; 0 for a shorter file, or none."""
    try:
        with path.open("rb") as stream:
            end = stream.seek(0, os.SEEK_END)
            if lines <= 0:
                return end
            # The line break at the end of the file ends its last line and begins none.
            missing, place = lines, max(0, end - 1)
            while place > 0:
                size = min(_BLOCK_BYTES, place)
                place -= size
                stream.seek(place)
                block = stream.read(size)
                if block.count(b"\n") >= missing:
                    for _ in range(missing):
                        size = block.rindex(b"\n", 0, size)
                    return place + size + 1
                missing -= block.count(b"\n")
    except OSError:
        pass
    return 0
