"""Which try at a cell counts, and which earlier tries its steps go back to."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from gnnhpc.core.errors import InputError
from gnnhpc.records.paths import AttemptPaths, CellPaths
from gnnhpc.records.schema import Result


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
class ResumePoint:
    """Where an attempt went on from: another's checkpoint before training step `step`."""

    attempt: int
    step: int


@dataclass(frozen=True)
class UsedSteps:
    """The stretch of an attempt that belongs to a cell: training steps `first` up to `stop`."""

    attempt: AttemptPaths
    first: int
    stop: int | None
    """None goes to the end."""


def read_attempts(cell: CellPaths) -> list[Attempt]:
    """All tries, oldest first; raises InputError for a damaged result or another schema."""
    return [
        Attempt(paths, Result.read(paths.result) if paths.result.exists() else None)
        for paths in cell.attempts()
    ]


def choose_attempt(attempts: list[Attempt]) -> Attempt | None:
    """The newest valid attempt, else the newest done one, else the newest that ended."""
    ended = [attempt for attempt in attempts if attempt.result is not None]
    done = [attempt for attempt in ended if attempt.status == "done"]
    valid = [attempt for attempt in done if attempt.valid]
    preferred = valid or done or ended
    return preferred[-1] if preferred else None


def resume_chain(chosen: Attempt, attempts: list[Attempt]) -> list[UsedSteps]:
    """The attempts whose records make up `chosen`, newest first, following its resumes.

    An attempt that went on from step k of another takes that one's steps before k, and so on
    back. The one it went on from need not have ended. Raises InputError for a resume from an
    attempt that is not there or not earlier.
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
    """Where the attempt went on from: its result says so, or, if it failed, its first records."""
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
    """The detail of the event that rank 0 wrote before its first step, if it resumed."""
    if not paths.records(0).exists():
        return None
    with paths.records(0).open(encoding="utf-8", errors="replace") as stream:
        for line in stream:
            if '"step"' in line and '"event"' not in line:
                return None
            try:
                record = json.loads(line)
            except json.JSONDecodeError:
                return None
            if record.get("kind") == "event" and record.get("name") == "resumed":
                detail: dict[str, Any] = record["detail"]
                return detail
    return None
