"""Resume points: which checkpoint a new attempt may resume from, and what it takes over.

A resumed attempt and those before it are one measurement. So an attempt resumes only where code,
packages and, of each rank, CPU, threads, device, kernels and whatever else changes rounding are the
same. Flags of the steps before the checkpoint count for the resumed attempt.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gnnhpc.core.errors import InputError
from gnnhpc.core.provenance import code_digest, versions
from gnnhpc.core.run_paths import AttemptPaths, CellPaths
from gnnhpc.core.versioned_json import DIGEST, check_version, content_digest, read_object
from gnnhpc.records.rank_record_writer import FileDigest
from gnnhpc.records.result_file import read_if_whole
from gnnhpc.records.schema import Check

CHECKPOINT_VERSION = 1
METADATA_FILE = "metadata.json"
COMPARED = ("cpu_model", "cpu_capability", "threads", "implementation", "kernels", "variables")
"""What a rank's header holds that must be the same in both attempts."""
_WHICH_GPU = ("identity", "visible")
"""Keys that name one of several equal GPUs."""


@dataclass(frozen=True)
class EarlierAttempts:
    """What a resumed attempt takes over from all attempts up to its checkpoint."""

    suspect: Mapping[str, str] = field(default_factory=dict)
    """Name of a check -> its first detail that was suspect."""
    records: Mapping[str, FileDigest] = field(default_factory=dict)
    """`attempt-<n>/<file>` -> size and SHA-256 at the checkpoint."""

    def with_attempt(
        self, name: str, checks: Sequence[Check], files: Mapping[str, FileDigest]
    ) -> EarlierAttempts:
        """These and one more attempt, whose folder has this name."""
        found = {c.name: f"{name}: {c.detail}" for c in checks if c.verdict == "suspect"}
        records = {f"{name}/{file}": digest for file, digest in files.items()}
        return EarlierAttempts(found | dict(self.suspect), {**self.records, **records})

    def checks(self) -> list[Check]:
        """What was suspect before the checkpoint."""
        return [Check(name, "suspect", detail) for name, detail in self.suspect.items()]


@dataclass(frozen=True)
class ResumePoint:
    """A complete checkpoint of an earlier attempt, and the training step to continue with."""

    attempt: int
    path: Path
    step: int
    test_steps_done: int
    balance: list[int]
    """Layers of each virtual stage, which the attempt that resumes takes over."""
    environment: Mapping[str, Any]
    """What it was computed with, as `environment_of` describes it."""
    earlier: EarlierAttempts

    @property
    def as_record(self) -> dict[str, int]:
        """The entry `resumed_from` of the result and of the records."""
        return {"attempt": self.attempt, "step": self.step}


def find_resume_point(
    cell: CellPaths, attempt: AttemptPaths, environment: Mapping[str, Any]
) -> tuple[ResumePoint | None, list[str]]:
    """The newest fitting checkpoint of the attempts since the last one that is done, if any.

    Also which newer checkpoints are skipped, and why, as lines for the log. A done attempt is a
    measurement, so another attempt measures the cell anew. A checkpoint fits if its files are as
    they were written, its attempt was not found wrong, and it was computed with the same
    `environment`.
    """
    skipped: list[str] = []
    earlier = [a for a in cell.attempts() if a.number < attempt.number]
    for before in reversed(earlier):
        result = read_if_whole(before.result)
        if result is not None and result.status == "done":
            break
        wrong = [each for each in result.audit if each.verdict == "invalid"] if result else []
        for path in sorted(before.checkpoints.glob("step-*"), reverse=True):
            try:
                point = read_checkpoint(path, before.number)
                why = "; ".join(
                    [f"its attempt is invalid, {each.name}: {each.detail}" for each in wrong]
                    or differences(point.environment, environment)
                )
            except InputError as error:
                why = f"it is {error.found}"
            if not why:
                return point, skipped
            skipped.append(f"checkpoint attempt-{before.number}/{path.name} is skipped: {why}")
    return None, skipped


def read_checkpoint(path: Path, attempt: int) -> ResumePoint:
    """Raises InputError for a folder that is no complete checkpoint, or of another version."""
    try:
        raw = read_object(path / METADATA_FILE, "what a checkpoint was computed with")
        check_version(raw, CHECKPOINT_VERSION, path)
        if raw.get(DIGEST) != content_digest(raw) or raw["files"] != digests(path):
            raise InputError(path, None, "damaged or changed", "as written")
    except OSError as error:
        raise InputError(path, None, f"incomplete ({error})", "a step-* folder") from None
    return ResumePoint(
        attempt,
        path,
        step=raw["step"],
        test_steps_done=raw["tested"],
        balance=raw["balance"],
        environment=raw["environment"],
        earlier=EarlierAttempts(**raw["earlier"]),
    )


def digests(checkpoint: Path) -> dict[str, str]:
    """SHA-256 of the files that hold a checkpoint's tensors."""
    found = {}
    for path in sorted(checkpoint.iterdir()):
        if path.name != METADATA_FILE:
            with path.open("rb") as stream:
                found[path.name] = hashlib.file_digest(stream, "sha256").hexdigest()
    return found


def environment_of(ranks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What an attempt computes with, by name; `ranks` are the metadata of each rank."""
    found: dict[str, Any] = {"code": code_digest(), **versions()}
    for number, rank in enumerate(ranks):
        gpu = rank.get("device_facts") or {}
        found |= {f"{key} of rank {number}": rank.get(key) for key in COMPARED}
        found[f"GPU of rank {number}"] = {k: v for k, v in gpu.items() if k not in _WHICH_GPU}
    return found


def differences(stored: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """Each thing in which a checkpoint's environment and this attempt's differ, in words."""
    return [
        f"{key} {stored.get(key, 'none')} there, {current.get(key, 'none')} here"
        for key in sorted({*stored, *current})
        if stored.get(key) != current.get(key)
    ]
