"""Reads what `status` needs of the cells' folders: attempts, results, failures, progress.

Must be fast for ten thousand cells: each file is read once, and only what is used is checked.
"""

from __future__ import annotations

import contextlib
import os
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from gnnhpc.core.errors import InputError
from gnnhpc.core.layout import Layout, processes_of
from gnnhpc.experiment.manifest_lines import ManifestLine, read_manifest_lines
from gnnhpc.records.failures import recorded_cause
from gnnhpc.records.run_paths import AttemptPaths, CellPaths, RunPaths
from gnnhpc.records.schema import Failure, Result, read_lines

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
    job: str | None = None
    """Names the job of Slurm's that made the attempt."""
    twice: int | None = None
    """A valid attempt of the same job before it: the job was requeued after its result."""
    damaged: bool = False
    """What the cell measured last is then not known."""


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
    """Every cell of a manifest, in order; raises InputError as `read_manifest_lines` does."""
    return [_manifest_entry(line) for line in read_manifest_lines(manifest)]


def _manifest_entry(line: ManifestLine) -> ManifestEntry:
    try:
        experiment = line.raw["experiment"]
        layout = Layout.parse(experiment.get("layout", "seq"))
        ranks = processes_of(layout, experiment.get("engine", "")).world_size
        return ManifestEntry(
            line.id, line.array, line.index, ranks, int(experiment.get("train_steps", 10))
        )
    except (InputError, ValueError, TypeError, AttributeError) as error:
        found = f"damaged ({type(error).__name__}: {error})"
        raise InputError(line.where, "experiment", found, "as written") from None


def list_attempts(paths: RunPaths) -> dict[str, list[AttemptPaths]]:
    """Cell id -> its attempts, newest first."""
    try:
        folders = list(paths.cells.iterdir())
    except FileNotFoundError:
        return {}
    return {folder.name: CellPaths(folder).attempts()[::-1] for folder in folders}


def read_attempt_result(attempt: AttemptPaths) -> AttemptResult | None:
    """The result of an attempt, None if there is none; a damaged one is returned as failed."""
    try:
        result = Result.read(attempt.result)
    except FileNotFoundError:
        return None
    except InputError as error:
        cause = str(error).removeprefix(f"{attempt.root}/")
        return AttemptResult(
            attempt.number, "failed", _written_at(attempt.result), False, (), cause, damaged=True
        )
    told = AttemptResult(
        attempt=attempt.number,
        status=result.status,
        ended_at=result.ended_at,
        valid=result.valid,
        flags=tuple(result.flags),
        cause=_failure_text(result.failure) if result.failure else None,
        job=result.slurm_job,
    )
    damage = _of_another(attempt, result)
    if damage is None and told.valid:
        damage = _cut_records(attempt, result)
    if damage is None:
        return told
    return replace(told, status="failed", valid=False, cause=damage, damaged=True)


def _of_another(attempt: AttemptPaths, result: Result) -> str | None:
    """Whose result lies there, where it is not this attempt's."""
    if (result.cell, result.attempt) == (attempt.cell, attempt.number):
        return None
    return f"result.json: found that of attempt {result.attempt} of {result.cell}"


def _cut_records(attempt: AttemptPaths, result: Result) -> str | None:
    """Which file is shorter than the result says, without reading it."""
    for name, written in result.records.items():
        size, path = written.get("size"), attempt.root / name
        if not isinstance(size, int):
            continue
        try:
            found = path.stat().st_size
            if found < size:
                # What NFS has kept of a file may be a minute old; opening it asks the server.
                with path.open("rb") as opened:
                    found = os.fstat(opened.fileno()).st_size
        except FileNotFoundError:
            return f"{name}: no such file, though result.json names it"
        except OSError:
            continue
        if found < size:
            return f"{name}: found {found} bytes, allowed: the {size} that result.json tells"
    return None


def _written_at(path: Path) -> str:
    """When a file that does not say it was last written, UTC, ISO 8601; empty if it is gone."""
    try:
        return datetime.fromtimestamp(path.lstat().st_mtime, UTC).isoformat(timespec="seconds")
    except OSError:
        return ""


def read_failure_cause(attempt: AttemptPaths, world_size: int) -> str | None:
    """The failure that the first failing rank recorded, for attempts without a result."""
    first = recorded_cause(attempt, world_size)
    return _failure_text(first) if first else None


def _failure_text(failure: Failure) -> str:
    place = f"rank {failure.rank} on {failure.host}"
    if failure.step is not None:
        place += f", {failure.phase or 'train'} step {failure.step}"
    return f"{place}: {' '.join(failure.error.split())}"


def read_attempt_process(attempt: AttemptPaths) -> AttemptProcess | None:
    """Host, process and job of rank 0; None before it has written its first line."""
    try:
        with attempt.records(0).open("rb") as stream:
            raw = from_json(stream.readline(_HEADER_BYTES))
        slurm = raw.get("slurm", {})
        array, task = slurm.get("SLURM_ARRAY_JOB_ID"), slurm.get("SLURM_ARRAY_TASK_ID")
        job = f"{array}_{task}" if array and task else slurm.get("SLURM_JOB_ID")
        return AttemptProcess(str(raw["host"]), int(raw["pid"]), job)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def read_attempt_job(attempt: AttemptPaths) -> str | None:
    """Slurm's id of the array task that made an attempt, as far as it is recorded."""
    process = read_attempt_process(attempt)
    if process is not None:
        return process.job
    failure = recorded_cause(attempt, 1)
    return failure.job if failure else None


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
            record = from_json(line)
            if isinstance(record, dict):
                yield record


def read_training_s(attempt: AttemptPaths) -> list[float]:
    """Seconds of each training step of rank 0 after warm-up; all ranks share a step's barriers.

    Raises InputError for damaged records.
    """
    return [
        _step_s(record)
        for record in read_lines(attempt.records(0))
        if record.get("kind") == "step" and record["phase"] == "train" and not record["warmup"]
    ]


def _step_s(record: Mapping[str, Any]) -> float:
    """To draw a sampled mini-batch is part of its step."""
    drawn = record.get("sampled_edges") is not None
    return float(record["wall_s"]) + (float(record["data_s"]) if drawn else 0.0)


def last_write_time(attempt: AttemptPaths) -> float:
    """When a file in the attempt's folder was last written, seconds since the epoch."""
    newest = 0.0
    with contextlib.suppress(OSError):
        newest = attempt.root.stat().st_mtime
        with os.scandir(attempt.root) as entries:
            newest = max([newest, *(entry.stat().st_mtime for entry in entries)])
    return newest
