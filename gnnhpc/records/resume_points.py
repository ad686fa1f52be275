"""Resume points: which checkpoint a new attempt may resume from, and what it takes over.

A resumed attempt and those before it are one measurement. So an attempt resumes only where code,
packages and, of each rank, CPU, threads, device, kernels and whatever else changes rounding are the
same. Flags of the steps before the checkpoint count for the resumed attempt.
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
from gnnhpc.core.versioned_json import DIGEST, check_version, content_digest, read_object
from gnnhpc.records.record_writer import Written
from gnnhpc.records.result_file import read_if_whole
from gnnhpc.records.schema import Check

CHECKPOINT_VERSION = 1
METADATA_FILE = "metadata.json"
FRESH_VARIABLE = "GNNHPC_FRESH"
"""Set it to start over although there is a checkpoint."""
COMPARED = (
    "cpu_model",
    "cpu_capability",
    "threads",
    "implementation",
    "kernels",
    "variables",
)
"""What a rank's header holds that must be the same in both attempts."""
_WHICH_GPU = ("identity", "visible")
"""Keys that name one of several equal GPUs."""


@dataclass(frozen=True)
class EarlierAttempts:
    """What a resumed attempt takes over from all attempts up to its checkpoint."""

    suspect: Mapping[str, str] = field(default_factory=dict)
    """Name of a check -> its first detail that was suspect."""
    records: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """`attempt-<n>/<file>` -> size and SHA-256 at the checkpoint."""

    def with_attempt(
        self, name: str, checks: Sequence[Check], files: Sequence[Written]
    ) -> EarlierAttempts:
        """These and one more attempt, whose folder has this name."""
        records = {**self.records, **digests_by_file(files, f"{name}/")}
        return replace(self.with_checks(name, checks), records=records)

    def with_checks(self, name: str, checks: Sequence[Check]) -> EarlierAttempts:
        """These and what the checks of an attempt found after its checkpoint."""
        found = {c.name: f"{name}: {c.detail}" for c in checks if c.verdict == "suspect"}
        return replace(self, suspect=found | dict(self.suspect))

    def merged_with(self, checks: Sequence[Check]) -> list[Check]:
        """The checks of the resumed attempt, and those that were suspect before it alone."""
        flagged = {check.name for check in checks if check.verdict in ("invalid", "suspect")}
        before = {name: why for name, why in self.suspect.items() if name not in flagged}
        kept = [check for check in checks if check.name not in before]
        return [*kept, *(Check(name, "suspect", why) for name, why in before.items())]


@dataclass(frozen=True)
class ResumePoint:
    """A complete checkpoint of an earlier attempt, and the training step to continue with."""

    attempt: int
    path: Path
    step: int
    test_steps_done: int
    environment: Mapping[str, Any]
    """What it was computed with, as `environment_of` describes it."""
    earlier: EarlierAttempts = field(default_factory=EarlierAttempts)

    @property
    def name(self) -> str:
        return f"attempt-{self.attempt}/{self.path.name}"


@dataclass(frozen=True)
class Resume:
    """Where an attempt begins: at a checkpoint or, without one, at step 0."""

    point: ResumePoint | None = None
    skipped: tuple[dict[str, str], ...] = ()
    """Newer checkpoints that it cannot resume from: `checkpoint`, and `why`."""

    @property
    def earlier(self) -> EarlierAttempts:
        """What was found of the attempts up to the checkpoint."""
        return self.point.earlier if self.point else EarlierAttempts()

    @property
    def as_record(self) -> dict[str, Any] | None:
        """The entry `resumed_from` of the result and of the records."""
        point = self.point
        if point is None:
            return None
        return {"attempt": point.attempt, "step": point.step, "tested": point.test_steps_done}

    @property
    def balance(self) -> list[int] | None:
        """Layers a stage of the attempt that is resumed; None where the attempt starts anew."""
        return self.point.environment.get("balance") if self.point else None

    def lines(self) -> list[str]:
        """Lines for the log: which checkpoints are skipped and why."""
        begins = f"resumes from {self.point.name}" if self.point else "begins at step 0"
        return [
            f"checkpoint {each['checkpoint']} is skipped: {each['why']}; {begins}"
            for each in self.skipped
        ]


def find_resume_point(
    cell: CellPaths, attempt: AttemptPaths, environment: Mapping[str, Any] | None = None
) -> Resume:
    """The newest fitting checkpoint of the attempts since the last one that is done, if any.

    A done attempt is a measurement, so another attempt measures the cell anew. A checkpoint fits if
    its files are as they were written, its attempt was not found wrong, and it was computed with
    the same `environment`; None skips that comparison.
    """
    if os.environ.get(FRESH_VARIABLE):
        return Resume()
    skipped: list[dict[str, str]] = []
    earlier = [a for a in cell.attempts() if a.number < attempt.number]
    for before in reversed(earlier):
        result = read_if_whole(before.result)
        if result is not None and result.status == "done":
            break
        checks = [] if result is None else result.audit
        for path in sorted(before.checkpoints.glob("step-*"), reverse=True):
            try:
                point = read_checkpoint(path, before.number)
                why = _misfit(point, checks, environment)
            except InputError as error:
                why = f"{error.key or 'it'} is {error.found}"
            if not why:
                taken_over = point.earlier.with_checks(before.root.name, checks)
                return Resume(replace(point, earlier=taken_over), tuple(skipped))
            name = f"attempt-{before.number}/{path.name}"
            skipped.append({"checkpoint": name, "why": why})
    return Resume(None, tuple(skipped))


def _misfit(
    point: ResumePoint, checks: Sequence[Check], environment: Mapping[str, Any] | None
) -> str:
    """Why an attempt cannot resume from this checkpoint; empty where it can."""
    for check in checks:
        if check.verdict == "invalid":
            return f"its attempt is invalid, {check.name}: {check.detail}"
    return "" if environment is None else "; ".join(differences(point.environment, environment))


def read_checkpoint(path: Path, attempt: int) -> ResumePoint:
    """Raises InputError for a folder that is no complete checkpoint, or of another version."""
    try:
        raw = read_object(path / METADATA_FILE, "what a checkpoint was computed with")
        check_version(raw, CHECKPOINT_VERSION, path)
        if raw[DIGEST] != content_digest(raw):
            raise InputError(path, METADATA_FILE, "changed since it was written", "as written")
        actual = digests(path)
        changed = sorted(name for name, one in raw["files"].items() if actual.get(name) != one)
        if changed:
            raise InputError(path, changed[0], "missing or damaged", "the file that was written")
        earlier = EarlierAttempts(raw["earlier"]["suspect"], raw["earlier"]["records"])
        environment = raw["environment"]
        return ResumePoint(attempt, path, raw["step"], raw["tested"], environment, earlier)
    except (OSError, KeyError, TypeError) as error:
        raise InputError(
            path, None, f"no complete checkpoint ({error})", "a step-* folder"
        ) from None


def digests(checkpoint: Path) -> dict[str, str]:
    """SHA-256 of the files that hold a checkpoint's tensors."""
    found = {}
    for path in sorted(checkpoint.iterdir()):
        if path.name != METADATA_FILE:
            with path.open("rb") as stream:
                found[path.name] = hashlib.file_digest(stream, "sha256").hexdigest()
    return found


def digests_by_file(files: Sequence[Written], folder: str = "") -> dict[str, dict[str, Any]]:
    """`<folder><file>` -> its size in bytes and SHA-256."""
    return {f"{folder}{one.file}": {"size": one.size, "sha256": one.sha256} for one in files}


def environment_of(
    ranks: Sequence[Mapping[str, Any]], balance: Sequence[int] | None = None
) -> dict[str, Any]:
    """What an attempt computes with; `ranks` are the metadata of each rank.

    `balance` is layers a stage. It is not compared, since a resumed attempt takes it over.
    """
    return {
        "code": code_digest(),
        "versions": versions(),
        "ranks": [
            {key: rank.get(key) for key in COMPARED} | {"gpu": _gpu(rank.get("device_facts"))}
            for rank in ranks
        ],
        "balance": None if balance is None else list(balance),
    }


def _gpu(device: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if device is None:
        return None
    return {key: value for key, value in device.items() if key not in _WHICH_GPU}


def differences(stored: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """Each thing in which a checkpoint's environment and this attempt's differ, in words."""
    return [
        f"{what} {_text(old)} there, {_text(new)} here"
        for what, old, new in _pairs(stored, current)
    ]


def _pairs(
    stored: Mapping[str, Any], current: Mapping[str, Any]
) -> Iterator[tuple[str, object, object]]:
    if stored.get("code") != current["code"]:
        yield "code", stored.get("code"), current["code"]
    yield from _differing(stored.get("versions") or {}, current["versions"])
    old, new = stored.get("ranks") or [], current["ranks"]
    if len(old) != len(new):
        yield "ranks", len(old), len(new)
        return
    for number, (before, now) in enumerate(zip(old, new, strict=True)):
        for key, *values in _differing(before, now):
            yield f"{key} of rank {number}", values[0], values[1]


def _differing(
    stored: Mapping[str, Any], current: Mapping[str, Any]
) -> Iterator[tuple[str, object, object]]:
    for key in sorted({*stored, *current}):
        if stored.get(key) != current.get(key):
            yield key, stored.get(key), current.get(key)


def _text(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {each}" for key, each in value.items()) or "none"
    return "none" if value is None else str(value)
