"""The attempts at a cell: reads them and chooses the one that counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gnnhpc.core.errors import InputError
from gnnhpc.core.run_paths import AttemptPaths, CellPaths
from gnnhpc.records.result_file import Result


@dataclass(frozen=True)
class Attempt:
    """One attempt at a cell; `result` is None while it runs, or if it died before writing one."""

    paths: AttemptPaths
    result: Result | None
    damage: str = ""
    """Which file is damaged, and how; empty for an attempt without damage."""

    @property
    def number(self) -> int:
        return self.paths.number

    @property
    def status(self) -> str:
        """done, failed or interrupted as its result says; damaged; or unfinished."""
        if self.damage:
            return "damaged"
        return self.result.status if self.result else "unfinished"

    @property
    def valid(self) -> bool:
        return self.result is not None and self.result.valid and not self.damage


def choose_attempt(attempts: Sequence[Attempt]) -> Attempt | None:
    """The attempt that counts, of all from the oldest to the newest; None where there is none.

    It is the newest valid one, else the newest done, else the newest.
    """
    valid = [attempt for attempt in attempts if attempt.valid]
    done = [attempt for attempt in attempts if attempt.status == "done"]
    return next(reversed(valid or done or attempts), None)


def read_attempts(cell: CellPaths) -> list[Attempt]:
    """All attempts at a cell, oldest first; an attempt whose result cannot be read is damaged."""
    return [_read_attempt(paths) for paths in cell.attempts()]


def _read_attempt(paths: AttemptPaths) -> Attempt:
    try:
        return Attempt(paths, Result.read(paths.result))
    except FileNotFoundError:
        return Attempt(paths, None)
    except InputError as error:
        return Attempt(paths, None, str(error))
