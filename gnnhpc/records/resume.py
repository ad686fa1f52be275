"""Whether a new attempt resumes from an earlier one's checkpoint, and from which."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gnnhpc.core.errors import InputError
from gnnhpc.core.json_files import read_object
from gnnhpc.records.content_digest import DIGEST, content_digest
from gnnhpc.records.run_paths import AttemptPaths, CellPaths
from gnnhpc.records.schema import read_if_whole
from gnnhpc.records.so_far import SoFar
from gnnhpc.records.written_by import differences

CHECKPOINT_VERSION = 1
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
    written_by: Mapping[str, Any] | None = None
    """What it was computed with; None for one of an older version, which does not say."""
    so_far: SoFar = field(default_factory=SoFar)
    """What was found of the attempts up to it."""

    @property
    def name(self) -> str:
        return f"attempt-{self.attempt}/{self.path.name}"

    def as_record(self) -> dict[str, Any]:
        """As the result and the record of the attempt that resumes have it."""
        record = {"attempt": self.attempt, "step": self.step, "tested": self.test_steps_done}
        return record if self.written_by is not None else record | {"written_by": "unknown"}


@dataclass(frozen=True)
class Resume:
    """Where an attempt begins: at a checkpoint or, without one, at step 0."""

    point: ResumePoint | None = None
    passed_over: tuple[dict[str, str], ...] = ()
    """Newer checkpoints that it could not go on from: `checkpoint`, and `why`."""

    @property
    def balance(self) -> list[int] | None:
        """Layers a stage of the attempt that is gone on with; None where there is none, or an older
        one, which does not say.
        """
        made = self.point.written_by if self.point is not None else None
        return None if made is None else made.get("balance")

    def lines(self) -> list[str]:
        """What the log is to say."""
        begins = f"goes on from {self.point.name}" if self.point else "begins at step 0"
        found = [
            f"checkpoint {each['checkpoint']} is passed over: {each['why']}; {begins}"
            for each in self.passed_over
        ]
        if self.point is not None and self.point.written_by is None:
            found.append(f"{begins}, which does not say what it was computed with")
        return found


def find_resume_point(
    cell: CellPaths, attempt: AttemptPaths, here: Mapping[str, Any] | None = None
) -> Resume:
    """The newest fitting checkpoint of the attempts since the last one that is done, if any.

    A done attempt is a measurement: running the cell again measures it again, from the start. A
    checkpoint fits if its files are as written and it was computed with what `here` says
    (`written_by`), or does not say with what.
    """
    if os.environ.get(FRESH_VARIABLE):
        return Resume()
    passed_over: list[dict[str, str]] = []
    earlier = [a for a in cell.attempts() if a.number < attempt.number]
    for before in reversed(earlier):
        result = read_if_whole(before.result)
        if result is not None and result.status == "done":
            break
        ended = [] if result is None else result.audit
        wrong = [f"{c.name}: {c.detail}" for c in ended if c.verdict == "invalid"]
        for path in sorted(before.checkpoints.glob("step-*"), reverse=True):
            why = None
            try:
                point = read_checkpoint(path, before.number)
            except InputError as error:
                why = f"{error.key or 'it'} is {error.found}"
            else:
                if wrong:
                    why = f"its attempt was found wrong, {wrong[0]}"
                elif point.written_by is not None and here is not None:
                    why = "; ".join(differences(point.written_by, here))
            if not why:
                so_far = point.so_far.with_checks(before.root.name, ended)
                return Resume(replace(point, so_far=so_far), tuple(passed_over))
            name = f"attempt-{before.number}/{path.name}"
            passed_over.append({"checkpoint": name, "why": why})
    return Resume(None, tuple(passed_over))


def read_checkpoint(path: Path, attempt: int) -> ResumePoint:
    """Raises InputError for a folder that is no complete checkpoint, or of another version."""
    try:
        facts = read_object(path / FACTS_FILE, "what a checkpoint was computed with")
        if facts["version"] != CHECKPOINT_VERSION:
            raise InputError(path, "version", facts["version"], str(CHECKPOINT_VERSION))
        if facts[DIGEST] != content_digest(facts):
            raise InputError(path, FACTS_FILE, "changed since it was written", "as written")
        found = digests(path)
        changed = sorted(name for name, one in facts["files"].items() if found.get(name) != one)
        if changed:
            raise InputError(path, changed[0], "missing or damaged", "the file that was written")
        step, tested = int(facts["step"]), int(facts["tested"])
        cell = path.parents[2].name
        for key, told, wanted in (
            ("cell", facts.get("cell", cell), cell),
            ("step", f"step-{step:08d}", path.name),
        ):
            if told != wanted:
                raise InputError(path, key, told, f"{wanted}, as its path says")
        maker = facts.get("written_by")
        maker = None if maker is None else dict(maker)
        so_far = SoFar.read(facts["so_far"])
        if so_far.last_attempt != attempt:
            raise InputError(path, "so_far", f"of attempt-{so_far.last_attempt}", "of its own")
        return ResumePoint(attempt, path, step, tested, maker, so_far)
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
