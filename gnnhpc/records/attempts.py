"""The attempts at a cell: reads them, chooses the one that counts, and follows its resumes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from gnnhpc.core.errors import InputError
from gnnhpc.core.run_paths import AttemptPaths, CellPaths
from gnnhpc.core.versioned_json import parse_object
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
    attempts = [_read_attempt(paths) for paths in cell.attempts()]
    return [_with_checked_resumes(attempt, attempts) for attempt in attempts]


def _read_attempt(paths: AttemptPaths) -> Attempt:
    try:
        return Attempt(paths, Result.read(paths.result))
    except FileNotFoundError:
        return Attempt(paths, None)
    except InputError as error:
        return Attempt(paths, None, str(error))


def _with_checked_resumes(attempt: Attempt, attempts: Sequence[Attempt]) -> Attempt:
    try:
        resume_chain(attempt, attempts)
    except InputError as error:
        return replace(attempt, damage=attempt.damage or str(error))
    return attempt


@dataclass(frozen=True)
class UsedSteps:
    """The training steps of one attempt that count: from `first` up to, but without, `stop`."""

    attempt: AttemptPaths
    first: int
    stop: int | None
    """None for all steps to the end."""


def resume_chain(chosen: Attempt, attempts: Sequence[Attempt]) -> list[UsedSteps]:
    """The attempts whose records make up `chosen`, newest first.

    An attempt that resumed before step k of another one uses the other's steps before k, and so on
    backwards. Raises InputError for a resume from an attempt that is missing or is not earlier.
    """
    by_number = {attempt.number: attempt for attempt in attempts}
    used: list[UsedSteps] = []
    current, stop = chosen, None
    while True:
        origin = resumed_from(current)
        number, first = origin or (0, 0)
        used.append(UsedSteps(current.paths, first, stop))
        if origin is None:
            return used
        if number >= current.number or number not in by_number:
            raise InputError(
                current.paths.root,
                "resumed_from.attempt",
                number,
                f"an earlier attempt in {current.paths.root.parent}",
            )
        stop = first if stop is None else min(stop, first)
        current = by_number[number]


def resumed_from(attempt: Attempt) -> tuple[int, int] | None:
    """Attempt and training step of the checkpoint that an attempt resumed from; None for none.

    Raises InputError where the result names neither.
    """
    raw = attempt.result.resumed_from if attempt.result else None
    if raw is None and attempt.status != "done":
        raw = _resume_event(attempt.paths)
    if raw is None:
        return None
    try:
        return int(raw["attempt"]), int(raw["step"])
    except (KeyError, TypeError, ValueError):
        raise InputError(attempt.paths.root, "resumed_from", raw, "an attempt and a step") from None


def _resume_event(paths: AttemptPaths) -> dict[str, Any] | None:
    """The detail of the event `resumed` in rank 0's records before its first step, if any."""
    try:
        with paths.records(0).open("rb") as stream:
            for line in stream:
                if b'"step"' in line and b'"event"' not in line:
                    return None
                record = parse_object(line, paths.records(0), "one record a line")
                if record.get("kind") == "event" and record.get("name") == "resumed":
                    detail: dict[str, Any] = record.get("detail") or {}
                    return detail
    except (OSError, InputError):
        # The reader of the steps reports what is wrong with the file.
        return None
    return None
