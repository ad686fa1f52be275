"""Whether a new attempt resumes from an earlier one's checkpoint, and from which."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnnhpc.core.errors import InputError
from gnnhpc.records.run_paths import AttemptPaths, CellPaths
from gnnhpc.records.schema import Result

CHECKPOINT_VERSION = 2
FACTS_FILE = "facts.json"
FRESH_VARIABLE = "GNNHPC_FRESH"
"""Set to start over although there is a checkpoint."""


@dataclass(frozen=True)
class ResumePoint:
    """A complete checkpoint of an earlier attempt, and the training step to continue with."""

    attempt: int
    path: Path
    step: int
    test_steps_done: int

    def as_record(self) -> dict[str, Any]:
        """As the result and the record of the attempt that resumes have it."""
        return {"attempt": self.attempt, "step": self.step, "tested": self.test_steps_done}


def find_resume_point(cell: CellPaths, attempt: AttemptPaths) -> ResumePoint | None:
    """The newest complete checkpoint of the attempts since the last one that is done, if any.

    A done attempt is a measurement: running the cell again measures it again, from the start.
    """
    if os.environ.get(FRESH_VARIABLE):
        return None
    earlier = [a for a in cell.attempts() if a.number < attempt.number]
    for before in reversed(earlier):
        if _is_done(before):
            return None
        found = newest_checkpoint(before)
        if found is not None:
            return found
    return None


def _is_done(attempt: AttemptPaths) -> bool:
    try:
        return Result.read(attempt.result).status == "done"
    except (OSError, InputError):
        return False


def newest_checkpoint(attempt: AttemptPaths) -> ResumePoint | None:
    """The last complete checkpoint of an attempt; unfinished ones have another name.

    A checkpoint whose files have changed since they were written is skipped.
    """
    for path in sorted(attempt.checkpoints.glob("step-*"), reverse=True):
        try:
            return read_checkpoint(path, attempt.number)
        except InputError:
            continue
    return None


def read_checkpoint(path: Path, attempt: int) -> ResumePoint:
    """Raises InputError for a folder that is no complete checkpoint, or of another version."""
    try:
        facts: dict[str, Any] = json.loads((path / FACTS_FILE).read_text(encoding="utf-8"))
        if facts["version"] != CHECKPOINT_VERSION:
            raise InputError(path, "version", facts["version"], str(CHECKPOINT_VERSION))
        found = digests(path)
        changed = sorted(name for name, one in facts["files"].items() if found.get(name) != one)
        if changed:
            raise InputError(path, changed[0], "missing or damaged", "the file that was written")
        return ResumePoint(attempt, path, int(facts["step"]), int(facts["tested"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            path, None, f"no complete checkpoint ({error})", "a step-* folder"
        ) from None


def digests(checkpoint: Path) -> dict[str, str]:
    """SHA-256 of the files that hold a checkpoint's tensors."""
    found = {}
    for path in sorted(checkpoint.iterdir()):
        if path.name != FACTS_FILE:
            with path.open("rb") as stream:
                found[path.name] = hashlib.file_digest(stream, "sha256").hexdigest()
    return found
