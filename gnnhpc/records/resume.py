"""Whether a new attempt goes on from an earlier one's checkpoint, and from where."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnnhpc.core.errors import InputError
from gnnhpc.records.paths import AttemptPaths, CellPaths
from gnnhpc.records.schema import Result

CHECKPOINT_VERSION = 2
FACTS = "facts.json"
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
    """The last whole checkpoint of an attempt; half-written ones have another name.

    One whose files are not what was written, as a dying disk leaves them, is passed over.
    """
    for path in sorted(attempt.checkpoints.glob("step-*"), reverse=True):
        try:
            return describe(path, attempt.number)
        except InputError:
            continue
    return None


def describe(path: Path, attempt: int) -> Origin:
    """Raises InputError for what is no checkpoint, or one of another version."""
    try:
        facts: dict[str, Any] = json.loads((path / FACTS).read_text(encoding="utf-8"))
        if facts["version"] != CHECKPOINT_VERSION:
            raise InputError(path, "version", facts["version"], str(CHECKPOINT_VERSION))
        found = digests(path)
        changed = sorted(name for name, one in facts["files"].items() if found.get(name) != one)
        if changed:
            raise InputError(path, changed[0], "missing or damaged", "the file that was written")
        return Origin(attempt, path, int(facts["step"]), int(facts["tested"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(path, None, f"no whole checkpoint ({error})", "a step-* folder") from None


def digests(checkpoint: Path) -> dict[str, str]:
    """SHA-256 of the files that hold a checkpoint's tensors."""
    found = {}
    for path in sorted(checkpoint.iterdir()):
        if path.name != FACTS:
            with path.open("rb") as stream:
                found[path.name] = hashlib.file_digest(stream, "sha256").hexdigest()
    return found
