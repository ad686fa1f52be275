"""The attempts at a cell: reads them and chooses the one that counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from gnnhpc.core.errors import InputError
from gnnhpc.core.run_paths import AttemptPaths, CellPaths
from gnnhpc.records.result_file import Result


class AnyAttempt(Protocol):
    """What `choose_attempt` needs to know of an attempt."""

    @property
    def number(self) -> int: ...
    @property
    def status(self) -> str: ...
    @property
    def valid(self) -> bool: ...


AttemptType = TypeVar("AttemptType", bound=AnyAttempt)


def choose_attempt(attempts: Sequence[AttemptType]) -> AttemptType | None:
    """The attempt that counts: the newest valid one that is done, else the newest done, else the
    newest. None where there is no attempt.
    """
    done = [attempt for attempt in attempts if attempt.status == "done"]
    valid = [attempt for attempt in done if attempt.valid]
    return max(valid or done or attempts, key=lambda attempt: attempt.number, default=None)


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
