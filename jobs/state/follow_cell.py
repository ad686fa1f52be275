"""`logs --follow`: what a cell's job and ranks print, as they print it, until the cell ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from gnnhpc.records.run_paths import RunPaths
from jobs.folder.attempt_files import ManifestEntry
from jobs.folder.growing_logs import GrowingLog
from jobs.folder.log_files import newest_job_log
from jobs.state.run_status import status_of_cell
from jobs.state.states import MAY_RUN, CellStatus

LOOK_S = 1.0
"""Pause between two looks at the logs."""
ASK_S = 11.0
"""Pause between two looks at the cell's state; answers of Slurm's are kept for ten seconds."""
_ENDED_FOR_GOOD = ("done", "flagged", "failed", "cancelled", "out of memory", "missing")
"""Slurm may queue cells in other states again a moment later."""


class FollowedCell:
    """The newest attempt's rank logs and the newest job's log of one cell."""

    def __init__(self, paths: RunPaths, entry: ManifestEntry, rank: int | None, lines: int) -> None:
        """All ranks, or one; begins with the last `lines` lines of each log that is there."""
        self.paths = paths
        self.entry = entry
        self.ranks = range(entry.world_size) if rank is None else (rank,)
        self.attempt: int | None = None
        self._job = Path()
        self._logs: dict[str, GrowingLog] = {}
        self._find_logs(lines)

    def new_lines(self, *, ended: bool = False) -> list[str]:
        """Lines since the last call: `job: ` before those of the job, `0: ` before rank 0's."""
        found = self._read(ended=ended)
        if self._find_logs(None):
            found += self._read(ended=ended)
        return found

    def has_result(self) -> bool:
        """Whether the newest attempt has ended."""
        cell = self.paths.cell(self.entry.id)
        return self.attempt is not None and cell.attempt(self.attempt).result.exists()

    def _read(self, *, ended: bool) -> list[str]:
        return [
            f"{label}: {line}"
            for label, log in self._logs.items()
            for line in log.new_lines(ended=ended)
        ]

    def _find_logs(self, lines: int | None) -> bool:
        """Go over to a newer attempt or job, if there is one; whether there was."""
        attempts = self.paths.cell(self.entry.id).attempts()
        job = newest_job_log(self.paths, self.entry)
        before = self.attempt, self._job
        if job is not None and job != self._job:
            self._job = job
            self._logs = {"job": GrowingLog(job, lines)} | {
                label: log for label, log in self._logs.items() if label != "job"
            }
        if attempts and attempts[-1].number != self.attempt:
            self.attempt = attempts[-1].number
            for rank in self.ranks:
                self._logs[str(rank)] = GrowingLog(attempts[-1].log(rank), lines)
        return before != (self.attempt, self._job)


def follow_cell(
    followed: FollowedCell, show: Callable[[list[str]], None], tell: Callable[[str], None]
) -> CellStatus:
    """Show new lines until the cell has ended; returns how it did.

    `tell` hears of the cell's state and attempt whenever they change.
    """
    told: tuple[str, int | None] | None = None
    asked, had_result, ended_before, was_live = -ASK_S, False, False, False
    while True:
        show(followed.new_lines())
        has_result = followed.has_result()
        if time.monotonic() - asked < ASK_S and has_result == had_result:
            time.sleep(LOOK_S)
            continue
        current = status_of_cell(followed.paths, followed.entry)
        asked, had_result = time.monotonic(), has_result
        if told != (current.state, followed.attempt):
            told = (current.state, followed.attempt)
            tell(_state_text(followed.attempt, current))
        ended = current.state not in MAY_RUN
        if current.state in _ENDED_FOR_GOOD or (ended and ended_before):
            # The result is written before the ranks and their job have ended.
            time.sleep(LOOK_S if was_live else 0)
            show(followed.new_lines(ended=True))
            return current
        ended_before, was_live = ended, was_live or not ended


def _state_text(attempt: int | None, cell: CellStatus) -> str:
    which = "" if attempt is None else f", attempt {attempt}"
    why = f": {cell.detail}" if cell.detail else ""
    return f"{cell.array} {cell.index}{which}: {cell.state}{why}"
