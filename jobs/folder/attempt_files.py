"""Reads what `status` needs of the cells' folders: attempts, results, failures, progress.

Must be fast for ten thousand cells: each file is read once, and only what is used is checked.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from gnnhpc.core.errors import InputError
from gnnhpc.records.failures import is_echo, read_failures
from gnnhpc.records.paths import ATTEMPT, AttemptPaths, RunPaths
from gnnhpc.records.schema import SCHEMA

# Equal to gnnhpc.spec.manifest.MANIFEST_VERSION (a test compares them): importing that module
# would import pydantic, which costs `status` time.
MANIFEST_VERSION = 1
_TAIL_BYTES = 64 * 1024
_HEADER_BYTES = 64 * 1024


@dataclass(frozen=True)
class ManifestEntry:
    """A cell's line in the manifest, as far as status needs it; its experiment is not checked."""

    id: str
    array: str
    index: int
    world_size: int
    train_steps: int


@dataclass(frozen=True)
class AttemptResult:
    """An attempt's result.json, as far as status needs it."""

    attempt: int
    status: str
    ended_at: str
    valid: bool
    flags: tuple[str, ...]
    cause: str | None


@dataclass(frozen=True)
class AttemptProcess:
    """The process of rank 0, from the first line of its records."""

    host: str
    pid: int
    job: str | None
    """Slurm's id of the array task, such as 1234_5."""


@dataclass(frozen=True)
class AttemptProgress:
    """Training steps that rank 0 has done, and seconds a step (median of the last ten)."""

    step: int
    step_s: float | None


def read_manifest_entries(manifest: Path) -> list[ManifestEntry]:
    """Every cell of a manifest, in order; raises InputError for another version or damage."""
    entries = []
    with manifest.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            if not line.strip():
                continue
            try:
                raw = from_json(line)
                version = raw.get("version")
                if version != MANIFEST_VERSION:
                    raise InputError(
                        f"{manifest}:{number}", "version", version, str(MANIFEST_VERSION)
                    )
                entries.append(_manifest_entry(raw))
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                found = f"a damaged line ({type(error).__name__}: {error})"
                raise InputError(f"{manifest}:{number}", None, found, "one cell a line") from None
    return entries


def _manifest_entry(raw: dict[str, Any]) -> ManifestEntry:
    experiment = raw["experiment"]
    ranks = 1
    for part in experiment.get("layout", "seq").split("-"):
        if part != "seq":
            ranks *= int(part[2:])
    return ManifestEntry(
        raw["id"], raw["array"], int(raw["index"]), ranks, int(experiment.get("train_steps", 10))
    )


def list_attempts(paths: RunPaths) -> dict[str, list[AttemptPaths]]:
    """Cell id -> its attempts, newest first."""
    found: dict[str, list[AttemptPaths]] = {}
    with contextlib.suppress(OSError), os.scandir(paths.cells) as cells:
        for cell in cells:
            with contextlib.suppress(OSError), os.scandir(cell.path) as folders:
                attempts = [
                    (int(match[1]), folder.path)
                    for folder in folders
                    if (match := ATTEMPT.match(folder.name))
                ]
                attempts.sort(reverse=True)
                found[cell.name] = [AttemptPaths(Path(path)) for _, path in attempts]
    return found


def read_attempt_result(attempt: AttemptPaths) -> AttemptResult | None:
    """The result of an attempt, None if there is none; a damaged one is returned as failed."""
    number = attempt.number
    try:
        with attempt.result.open("rb") as stream:
            raw = from_json(stream.read())
        if raw["schema"] != SCHEMA:
            cause = f"result.json of schema {raw['schema']}, this is schema {SCHEMA}"
            return AttemptResult(number, "failed", "", False, (), cause)
        verdicts = [(check["name"], check["verdict"]) for check in raw.get("audit", ())]
        failure = raw.get("failure")
        return AttemptResult(
            attempt=number,
            status=raw["status"],
            ended_at=raw["ended_at"],
            valid=raw["status"] == "done" and all(v != "invalid" for _, v in verdicts),
            flags=tuple(name for name, v in verdicts if v in ("invalid", "suspect")),
            cause=_failure_text(failure) if failure else None,
        )
    except FileNotFoundError:
        return None
    except OSError as error:
        return AttemptResult(number, "failed", "", False, (), f"result.json: {error.strerror}")
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        cause = f"damaged result.json ({type(error).__name__}: {error})"
        return AttemptResult(number, "failed", "", False, (), cause)


def read_failure_cause(attempt: AttemptPaths, world_size: int) -> str | None:
    """The failure that the first failing rank recorded, for attempts without a result."""
    failures = read_failures(attempt, world_size)
    first = next((f for f in failures if not is_echo(f)), failures[0] if failures else None)
    return _failure_text(first.__dict__) if first else None


def _failure_text(failure: dict[str, Any]) -> str:
    place = f"rank {failure.get('rank')} on {failure.get('host')}"
    if failure.get("step") is not None:
        place += f", {failure.get('phase') or 'train'} step {failure['step']}"
    return f"{place}: {' '.join(str(failure.get('error')).split())}"


def read_attempt_process(attempt: AttemptPaths) -> AttemptProcess | None:
    """Host, process and job of rank 0; None before it has written its first line."""
    try:
        with attempt.records(0).open("rb") as stream:
            raw = json.loads(stream.readline(_HEADER_BYTES))
        slurm = raw.get("slurm", {})
        array, task = slurm.get("SLURM_ARRAY_JOB_ID"), slurm.get("SLURM_ARRAY_TASK_ID")
        job = f"{array}_{task}" if array and task else slurm.get("SLURM_JOB_ID")
        return AttemptProcess(str(raw["host"]), int(raw["pid"]), job)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def read_attempt_progress(attempt: AttemptPaths) -> AttemptProgress:
    """The progress that the end of rank 0's records shows."""
    steps: list[tuple[int, float]] = []
    for record in _last_records(attempt.records(0)):
        if record.get("kind") == "step" and record.get("phase") == "train":
            seconds = float(record["wall_s"]) + float(record.get("data_s") or 0)
            steps.append((int(record["step"]), seconds))
            if len(steps) == 10:
                break
    if not steps:
        return AttemptProgress(0, None)
    return AttemptProgress(steps[0][0] + 1, statistics.median(seconds for _, seconds in steps))


def _last_records(path: Path) -> Iterator[dict[str, Any]]:
    """Records, last one first; an incomplete line at either end is skipped."""
    try:
        with path.open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(0, size - _TAIL_BYTES))
            lines = stream.read().split(b"\n")
    except OSError:
        return
    for line in reversed(lines):
        with contextlib.suppress(ValueError):
            record = json.loads(line)
            if isinstance(record, dict):
                yield record


def last_write_time(attempt: AttemptPaths) -> float:
    """When a file in the attempt's folder was last written, seconds since the epoch."""
    newest = 0.0
    with contextlib.suppress(OSError):
        newest = attempt.root.stat().st_mtime
        with os.scandir(attempt.root) as entries:
            newest = max([newest, *(entry.stat().st_mtime for entry in entries)])
    return newest
