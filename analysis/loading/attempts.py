"""Chooses the attempt of a cell that counts, and the earlier attempts that it resumed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from gnnhpc.core.errors import InputError
from gnnhpc.core.json_files import parse_object
from gnnhpc.records.run_paths import AttemptPaths, CellPaths
from gnnhpc.records.schema import Result

DAMAGED = "damaged"


@dataclass(frozen=True)
class Attempt:
    """One attempt at a cell; `result` is None while it runs, or if it died before writing one."""

    paths: AttemptPaths
    result: Result | None
    damage: str = ""
    """Which file is damaged or not this attempt's, and how; its numbers are then in nothing."""

    @property
    def number(self) -> int:
        return self.paths.number

    @property
    def status(self) -> str:
        if self.damage:
            return DAMAGED
        return self.result.status if self.result else "unfinished"

    @property
    def valid(self) -> bool:
        return self.result is not None and self.result.valid and not self.damage


@dataclass(frozen=True)
class ResumePoint:
    """Where an attempt resumed: at another attempt's checkpoint before training step `step`."""

    attempt: int
    step: int


@dataclass(frozen=True)
class UsedSteps:
    """The training steps of an attempt that count: from `first` up to, without, `stop`."""

    attempt: AttemptPaths
    first: int
    stop: int | None
    """None: all to the end."""


def read_attempts(cell: CellPaths) -> list[Attempt]:
    """All attempts, oldest first; one whose result or resume cannot be read is damaged."""
    attempts = [_read_attempt(paths) for paths in cell.attempts()]
    return [_with_resumes_checked(attempt, attempts) for attempt in attempts]


def _read_attempt(paths: AttemptPaths) -> Attempt:
    try:
        return Attempt(paths, Result.read(paths.result))
    except FileNotFoundError:
        return Attempt(paths, None)
    except InputError as error:
        return Attempt(paths, None, str(error))


def _with_resumes_checked(attempt: Attempt, attempts: list[Attempt]) -> Attempt:
    try:
        resume_chain(attempt, attempts)
    except InputError as error:
        return replace(attempt, damage=attempt.damage or str(error))
    return attempt


def choose_attempt(attempts: list[Attempt]) -> Attempt | None:
    """The newest valid attempt, else the newest done one, else the newest that ended.

    A damaged attempt that is newer than it: what the cell measured last is then not known.
    """
    ended = [attempt for attempt in attempts if attempt.result is not None and not attempt.damage]
    done = [attempt for attempt in ended if attempt.status == "done"]
    valid = [attempt for attempt in done if attempt.valid]
    candidates = (valid or done or ended)[-1:]
    candidates += [attempt for attempt in attempts if attempt.damage]
    return max(candidates, key=lambda attempt: attempt.number, default=None)


def resume_chain(chosen: Attempt, attempts: list[Attempt]) -> list[UsedSteps]:
    """The attempts whose records make up `chosen`, newest first, following its resumes.

    An attempt that resumed before step k of another uses the other's steps before k, and so on
    backwards. The resumed attempt need not have ended. Raises InputError for a resume from an
    attempt that does not exist or is not earlier.
    """
    by_number = {attempt.number: attempt for attempt in attempts}
    parts: list[UsedSteps] = []
    current, stop = chosen, None
    while True:
        origin = resume_point(current)
        first = 0 if origin is None else origin.step
        parts.append(UsedSteps(current.paths, first, stop))
        if origin is None:
            return parts
        if origin.attempt >= current.number or origin.attempt not in by_number:
            raise InputError(
                current.paths.root,
                "resumed_from.attempt",
                origin.attempt,
                f"an earlier attempt in {current.paths.root.parent}",
            )
        stop = first if stop is None else min(stop, first)
        current = by_number[origin.attempt]


def resume_point(attempt: Attempt) -> ResumePoint | None:
    """Where the attempt resumed, from its result or its first records; None if it did not."""
    raw = attempt.result.resumed_from if attempt.result else None
    if raw is None and attempt.status != "done":
        raw = _resume_event(attempt.paths)
    if raw is None:
        return None
    try:
        return ResumePoint(int(raw["attempt"]), int(raw["step"]))
    except (KeyError, TypeError, ValueError):
        raise InputError(attempt.paths.root, "resumed_from", raw, "an attempt and a step") from None


def _resume_event(paths: AttemptPaths) -> dict[str, Any] | None:
    """The detail of the `resumed` event in rank 0's records before its first step, if any."""
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
        # Whoever reads the steps says what is wrong with the file.
        return None
    return None
