"""Whether a new attempt goes on from an earlier one's checkpoint, and from where."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnnhpc.errors import InputError
from gnnhpc.paths import AttemptPaths, CellPaths
from gnnhpc.records import Result

CHECKPOINT_VERSION = 1
FRESH = "GNNHPC_FRESH"
"""Set to start over although there is a checkpoint."""


@dataclass(frozen=True)
class Origin:
    """A whole checkpoint of an earlier attempt, and the training step it goes on with."""

    attempt: int
    path: Path
    step: int
    tested: int

    def describe(self) -> dict[str, Any]:
        return {"attempt": self.attempt, "step": self.step, "tested": self.tested}


def find_origin(cell: CellPaths, attempt: AttemptPaths) -> Origin | None:
    """The newest whole checkpoint of the attempt before, if that one did not come to its end.

    A finished attempt is a measurement; trying the cell again measures it again, from the start.
    """
    if os.environ.get(FRESH):
        return None
    earlier = [a for a in cell.attempts() if a.number < attempt.number]
    for before in reversed(earlier):
        if _finished(before):
            return None
        origin = newest(before)
        if origin is not None:
            return origin
    return None


def _finished(attempt: AttemptPaths) -> bool:
    try:
        return Result.read(attempt.result).status == "done"
    except (OSError, InputError):
        return False


def newest(attempt: AttemptPaths) -> Origin | None:
    """The last whole checkpoint of an attempt; half-written ones have another name."""
    for path in sorted(attempt.checkpoints.glob("step-*"), reverse=True):
        try:
            return describe(path, attempt.number)
        except InputError:
            continue
    return None


def describe(path: Path, attempt: int) -> Origin:
    """Raises InputError for what is no checkpoint, or one of another version."""
    try:
        facts: dict[str, Any] = json.loads((path / "facts.json").read_text(encoding="utf-8"))
        if facts["version"] != CHECKPOINT_VERSION:
            raise InputError(path, "version", facts["version"], str(CHECKPOINT_VERSION))
        return Origin(attempt, path, int(facts["step"]), int(facts["tested"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(path, None, f"no whole checkpoint ({error})", "a step-* folder") from None
