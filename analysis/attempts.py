"""Which try at a cell counts, and which earlier tries its steps go back to."""

from __future__ import annotations

from dataclasses import dataclass

from gnnhpc.errors import InputError
from gnnhpc.paths import AttemptPaths, CellPaths
from gnnhpc.records import Result


@dataclass(frozen=True)
class Attempt:
    """One try at a cell; `result` is none while it runs, or if it died without a word."""

    paths: AttemptPaths
    result: Result | None

    @property
    def number(self) -> int:
        return self.paths.number

    @property
    def status(self) -> str:
        return self.result.status if self.result else "unfinished"

    @property
    def valid(self) -> bool:
        return self.result is not None and self.result.valid


@dataclass(frozen=True)
class Part:
    """The stretch of an attempt that belongs to a cell: training steps before `stop`, or all."""

    attempt: AttemptPaths
    stop: int | None


def read_attempts(cell: CellPaths) -> list[Attempt]:
    """All tries, oldest first; raises InputError for a damaged result or another schema."""
    return [
        Attempt(paths, Result.read(paths.result) if paths.result.exists() else None)
        for paths in cell.attempts()
    ]


def choose(attempts: list[Attempt]) -> Attempt | None:
    """The newest valid attempt, else the newest done one, else the newest that ended."""
    ended = [attempt for attempt in attempts if attempt.result is not None]
    done = [attempt for attempt in ended if attempt.status == "done"]
    valid = [attempt for attempt in done if attempt.valid]
    preferred = valid or done or ended
    return preferred[-1] if preferred else None


def chain(chosen: Attempt, attempts: list[Attempt]) -> list[Part]:
    """The attempts whose records make up `chosen`, newest first, following its resumes.

    An attempt that went on from step k of another takes that one's steps before k, and so on
    back. The one it went on from need not have ended. Raises InputError for a resume from an
    attempt that is not there or not earlier.
    """
    by_number = {attempt.number: attempt for attempt in attempts}
    parts = [Part(chosen.paths, None)]
    current, stop = chosen, None
    while origin := _origin(current):
        number, step = origin
        if number >= current.number or number not in by_number:
            raise InputError(
                current.paths.result,
                "resumed_from.attempt",
                number,
                f"an earlier attempt in {current.paths.root.parent}",
            )
        stop = step if stop is None else min(stop, step)
        current = by_number[number]
        parts.append(Part(current.paths, stop))
    return parts


def _origin(attempt: Attempt) -> tuple[int, int] | None:
    """Attempt and training step that this one went on from, from its result."""
    resumed = attempt.result.resumed_from if attempt.result else None
    if not resumed:
        return None
    try:
        return int(resumed["attempt"]), int(resumed["step"])
    except (KeyError, TypeError, ValueError):
        raise InputError(
            attempt.paths.result, "resumed_from", resumed, "an attempt and a step"
        ) from None
