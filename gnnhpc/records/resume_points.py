"""Resume points: which checkpoint a new attempt may continue from, and what it takes over.

A resumed attempt and the one before it are one measurement. So an attempt resumes only where what
computes is the same: code, packages, and of each rank CPU, threads, device, kernels and whatever
else changes rounding. Flags of the steps before the checkpoint count for the resumed attempt.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gnnhpc.core.errors import InputError
from gnnhpc.core.provenance import code_digest, versions
from gnnhpc.core.run_paths import AttemptPaths, CellPaths
from gnnhpc.core.versioned_json import DIGEST, content_digest, read_object
from gnnhpc.records.record_writer import Written
from gnnhpc.records.result_file import read_if_whole
from gnnhpc.records.schema import Check

CHECKPOINT_VERSION = 1
FACTS_FILE = "facts.json"
FRESH_VARIABLE = "GNNHPC_FRESH"
"""Set to start over although there is a checkpoint."""
COMPARED = (
    "cpu_model",
    "cpu_capability",
    "threads",
    "implementation",
    "kernels",
    "variables",
)
"""Of the facts of each rank."""
_NOT_COMPARED = "submitit"
_WHICH_GPU = ("identity", "visible")
"""Of a GPU's facts, those that only say which of several equal ones it is."""


@dataclass(frozen=True)
class SoFar:
    """Of all attempts up to a checkpoint."""

    suspect: Mapping[str, str] = field(default_factory=dict)
    """By check, what was found first."""
    records: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Size and SHA-256 of what each file held, by attempt and file."""

    def with_attempt(self, name: str, checks: Sequence[Check], files: Sequence[Written]) -> SoFar:
        """And of one more attempt, whose folder has this name."""
        records = {**self.records, **by_file(files, f"{name}/")}
        return replace(self.with_checks(name, checks), records=records)

    def with_checks(self, name: str, checks: Sequence[Check]) -> SoFar:
        """And what was found of an attempt later."""
        found = {c.name: f"{name}: {c.detail}" for c in checks if c.verdict == "suspect"}
        return replace(self, suspect=found | dict(self.suspect))

    def judged_with(self, checks: Sequence[Check]) -> list[Check]:
        """The checks of the attempt that went on; where these found nothing, what was suspect."""
        told = {check.name for check in checks if check.verdict in ("invalid", "suspect")}
        before = {name: why for name, why in self.suspect.items() if name not in told}
        kept = [check for check in checks if check.name not in before]
        return [*kept, *(Check(name, "suspect", why) for name, why in before.items())]

    @property
    def last_attempt(self) -> int:
        """The number of the last of them; ValueError without one."""
        return max(int(name.partition("/")[0].rpartition("-")[2]) for name in self.records)

    def as_facts(self) -> dict[str, Any]:
        return {"suspect": dict(self.suspect), "records": {**self.records}}

    @classmethod
    def read(cls, facts: Mapping[str, Any]) -> SoFar:
        """Of a checkpoint. Raises KeyError, TypeError or ValueError for other values."""
        records = {name: dict(each) for name, each in facts["records"].items()}
        return cls(dict(facts["suspect"]), records)


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


def by_file(files: Sequence[Written], folder: str = "") -> dict[str, dict[str, Any]]:
    """Size and SHA-256, by `folder` and name."""
    return {f"{folder}{one.file}": {"size": one.size, "sha256": one.sha256} for one in files}


def written_by(
    ranks: Sequence[Mapping[str, Any]], balance: Sequence[int] | None = None
) -> dict[str, Any]:
    """What this attempt computes with, as its checkpoints keep it; `ranks` are facts by rank.

    `balance` is layers a stage: no difference, as whoever goes on takes it over.
    """
    packages = {name: found for name, found in versions().items() if name != _NOT_COMPARED}
    return {
        "code": code_digest(),
        "versions": packages,
        "ranks": [
            {key: rank.get(key) for key in COMPARED} | {"gpu": _gpu(rank.get("device_facts"))}
            for rank in ranks
        ],
        "balance": None if balance is None else list(balance),
    }


def _gpu(facts: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if facts is None:
        return None
    return {key: value for key, value in facts.items() if key not in _WHICH_GPU}


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """In words, each thing in which what wrote a checkpoint and this attempt differ."""
    return [
        f"{what} {_shown(old)} there, {_shown(new)} here" for what, old, new in _pairs(there, here)
    ]


def _pairs(
    there: Mapping[str, Any], here: Mapping[str, Any]
) -> Iterator[tuple[str, object, object]]:
    if there.get("code") != here["code"]:
        yield "code", there.get("code"), here["code"]
    yield from _differing(there.get("versions") or {}, here["versions"])
    old, new = there.get("ranks") or [], here["ranks"]
    if len(old) != len(new):
        yield "ranks", len(old), len(new)
        return
    for number, (before, now) in enumerate(zip(old, new, strict=True)):
        for key, *values in _differing(before, now):
            yield f"{key} of rank {number}", values[0], values[1]


def _differing(
    there: Mapping[str, Any], here: Mapping[str, Any]
) -> Iterator[tuple[str, object, object]]:
    for key in sorted({*there, *here}):
        if there.get(key) != here.get(key):
            yield key, there.get(key), here.get(key)


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {found}" for key, found in value.items()) or "none"
    return "none" if value is None else str(value)
