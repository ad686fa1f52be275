"""The state of a run as its folder has it: cells, attempts, submissions and blocks, read once.

`status`, `rerun`, `cancel` and `clean` all begin with `read_run`.
"""

from __future__ import annotations

import contextlib
import os
import socket
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from gnnhpc.core.errors import InputError
from gnnhpc.core.provenance import user
from gnnhpc.core.run_paths import AttemptPaths, RunPaths
from gnnhpc.experiment.manifest import Cell, read_manifest
from gnnhpc.records.attempts import Attempt, choose_attempt, read_attempts
from gnnhpc.records.failures import recorded_cause
from gnnhpc.records.result_file import slurm_job, without_cluster
from gnnhpc.records.submissions import read_provenance
from jobs.run.submission_records import (
    Cluster,
    SubmissionRecord,
    process_start,
    read_submissions,
)
from jobs.slurm.launch import Launch
from jobs.slurm.paired_blocks import Blocks, Key, read_blocks
from jobs.slurm.site import parse_site

SILENT_AFTER_S = 120.0
"""Seconds without a written file after which an attempt on another host counts as ended."""
_TAIL_BYTES = 64 * 1024


@dataclass(frozen=True)
class RunState:
    """A run's cells, attempts and submissions."""

    paths: RunPaths
    cells: list[Cell]
    attempts: dict[str, list[Attempt]]
    """Cell id -> attempts, oldest first; a cell without attempts has no entry."""
    submissions: list[SubmissionRecord]
    """Oldest first."""
    blocks: Blocks

    @cached_property
    def submitted(self) -> dict[Key, SubmissionRecord]:
        """The newest submission of each cell, by array and index."""
        return {
            key: submission
            for submission in self.submissions
            for number in submission.numbers()
            for key in self.blocks.keys(submission.array, number)
        }

    def newest_attempt(self, key: Key) -> Attempt | None:
        """The newest attempt at the cell with this array and index."""
        attempts = self.attempts.get(self._ids.get(key, ""), [])
        return attempts[-1] if attempts else None

    @cached_property
    def _ids(self) -> dict[Key, str]:
        return {cell.key: cell.id for cell in self.cells}

    @property
    def users(self) -> set[str]:
        """Users whose jobs may be this run's; scripts submitted by hand leave no line."""
        return {user(), *(one.user for one in self.submissions if one.cluster == "slurm")}

    @property
    def slurm_arrays(self) -> dict[str, str]:
        """The arrays of the jobs that were submitted to Slurm, by job id."""
        return {one.job_id: one.array for one in self.submissions if one.cluster == "slurm"}

    @cached_property
    def unfinished(self) -> list[Cell]:
        """The cells without a valid attempt."""
        chosen = ((cell, choose_attempt(self.attempts.get(cell.id, []))) for cell in self.cells)
        return [cell for cell, attempt in chosen if attempt is None or not attempt.valid]

    @cached_property
    def unfinished_jobs(self) -> dict[str, str | None]:
        """The jobs of unfinished cells with their arrays, None for a job submitted by hand."""
        jobs: dict[str, str | None] = {}
        for cell in self.unfinished:
            attempts = self.attempts.get(cell.id)
            if attempts and (job := job_of(attempts[-1])):
                jobs.setdefault(job.partition("_")[0], None)
            submission = self.submitted.get(cell.key)
            if submission is not None and submission.cluster == "slurm":
                jobs[submission.job_id] = submission.array
        return jobs

    @property
    def may_be_in_slurm(self) -> bool:
        """Whether Slurm may have a job of the run: not for one that only ran locally."""
        local = bool(self.submissions) and all(one.cluster == "local" for one in self.submissions)
        return not local or bool(self.unfinished_jobs)

    @property
    def cluster(self) -> Cluster:
        """Where the run was first submitted."""
        return self.submissions[0].cluster if self.submissions else "slurm"

    @property
    def supervisors(self) -> set[str]:
        """Process ids of local supervisors that run on this machine."""
        return {one.job_id for one in self.submissions if one.supervisor_is_alive}

    def read_again(self, cells: Iterable[Cell]) -> RunState:
        """The same state with the attempts at these cells as they are now."""
        fresh = {cell.id: read_attempts(self.paths.cell(cell.id)) for cell in cells}
        kept = {name: some for name, some in (self.attempts | fresh).items() if some}
        return replace(self, attempts=kept)


def read_run(run: str | Path) -> RunState:
    """Read a run folder.

    Raises InputError if it is no run folder, or its manifest, submissions or blocks are damaged.
    """
    paths = open_run(run)
    attempts, cells = _read_all_attempts(paths), read_manifest(paths.manifest)
    if lost := attempts.keys() - {cell.id for cell in cells}:
        found = f"no line of {min(lost)}, which cells/ has an attempt of"
        raise InputError(paths.manifest, "cells", found, "a line of every cell of the run")
    return RunState(paths, cells, attempts, read_submissions(paths), read_blocks(paths, cells))


def open_run(run: str | Path) -> RunPaths:
    """The paths of the run folder that a user named; raises InputError if it is no run folder."""
    paths = RunPaths(Path(run).absolute())
    if not paths.manifest.is_file():
        found = "no manifest.jsonl in it" if paths.root.is_dir() else "no such folder"
        raise InputError(str(run), None, found, "a run folder, such as runs/quickstart")
    return paths


def _read_all_attempts(paths: RunPaths) -> dict[str, list[Attempt]]:
    """Cell id -> attempts, for each cell that has some."""
    try:
        folders = list(paths.cells.iterdir())
    except FileNotFoundError:
        return {}
    except OSError as error:
        found = f"unreadable ({error.strerror})"
        raise InputError(paths.cells, None, found, "a folder of each cell") from None
    read = ((folder.name, read_attempts(paths.cell(folder.name))) for folder in folders)
    return {name: attempts for name, attempts in read if attempts}


def find_cell_named(cells: Sequence[Cell], name: str) -> Cell:
    """The cell with this id, start of an id, or array:index; raises InputError unless it is one."""
    array, colon, index = name.rpartition(":")
    if colon:
        found = [cell for cell in cells if (cell.array, str(cell.index)) == (array, index)]
    else:
        found = [cell for cell in cells if cell.id == name]
        found = found or [cell for cell in cells if cell.id.startswith(name)]
    if len(found) == 1:
        return found[0]
    what = f"{name!r}, which {len(found)} cells begin with" if found else repr(name)
    example = f"{cells[0].array}:{cells[0].index} or {cells[0].id}"
    raise InputError("CELL", None, what, f"a cell's id or array:index, such as {example}")


def read_launch(paths: RunPaths) -> Launch:
    """How the run was first submitted; the interpreter is this one where that one is missing.

    Raises InputError for a damaged provenance.json, or none.
    """
    metadata = read_provenance(paths)
    if metadata is None:
        raise InputError(paths.provenance, None, "no such file", "what the run was submitted with")
    settings = metadata.get("site")
    if not isinstance(settings, dict) or not isinstance(settings.get("name"), str):
        raise InputError(paths.provenance, "site", repr(settings), "the site's name and settings")
    name = settings.pop("name")
    site = parse_site(settings, paths.provenance, "site")
    python = metadata.get("python")
    if not isinstance(python, str):
        raise InputError(paths.provenance, "python", repr(python), "the path of an interpreter")
    here = python if Path(python).is_file() else sys.executable
    return Launch(name, site, here, live=not paths.code_record.exists())


@dataclass(frozen=True)
class Process:
    """The process of rank 0, from the first line of its records."""

    host: str
    pid: int
    job: str | None
    """Slurm's name of the array task, such as 1234_5."""


@dataclass(frozen=True)
class Progress:
    """Training steps that rank 0 has done, and seconds a step (median of the last ten)."""

    step: int
    step_s: float | None


def read_process(attempt: AttemptPaths) -> Process | None:
    """None before rank 0 has written its first line."""
    try:
        with attempt.records(0).open("rb") as stream:
            raw = from_json(stream.readline(_TAIL_BYTES))
        job = slurm_job(raw.get("slurm"))
        return Process(str(raw["host"]), int(raw["pid"]), job and without_cluster(job))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def job_of(attempt: Attempt) -> str | None:
    """Slurm's name of the array task that made an attempt, as far as it is recorded."""
    if attempt.result is not None and attempt.result.slurm_job:
        return without_cluster(attempt.result.slurm_job)
    process = read_process(attempt.paths)
    return process.job if process is not None else None


def read_progress(attempt: AttemptPaths) -> Progress:
    """The progress that the end of rank 0's records shows."""
    steps: list[tuple[int, float]] = []
    for record in _last_records(attempt.records(0)):
        if record.get("kind") == "step" and record.get("phase") == "train":
            seconds = float(record["wall_s"]) + float(record.get("data_s") or 0)
            steps.append((int(record["step"]), seconds))
            if len(steps) == 10:
                break
    if not steps:
        return Progress(0, None)
    return Progress(steps[0][0] + 1, statistics.median(seconds for _, seconds in steps))


def failure_cause(attempt: Attempt, world_size: int) -> str | None:
    """Why an attempt failed, in one line: as its result says, else its first failing rank."""
    if attempt.damage:
        return attempt.damage.removeprefix(f"{attempt.paths.root}/")
    result = attempt.result
    failure = result.failure if result else recorded_cause(attempt.paths, world_size)
    if failure is None:
        return None
    place = f"rank {failure.rank} on {failure.host}"
    if failure.step is not None:
        place += f", {failure.phase or 'train'} step {failure.step}"
    return f"{place}: {' '.join(failure.error.split())}"


def last_write(attempt: AttemptPaths) -> float:
    """When a file of the attempt was last written, seconds since the epoch."""
    newest = 0.0
    with contextlib.suppress(OSError):
        newest = attempt.root.stat().st_mtime
        with os.scandir(attempt.root) as entries:
            newest = max([newest, *(entry.stat().st_mtime for entry in entries)])
    return newest


def may_still_run(attempt: Attempt, *, slurm_answers: bool) -> bool:
    """Whether an attempt without a result, which is in no queue, may still run."""
    if attempt.result is not None or attempt.damage:
        return False
    process = read_process(attempt.paths)
    if process is not None and process.host == socket.gethostname():
        return process_start(process.pid) is not None
    if process is not None and process.job and slurm_answers:
        return False
    return time.time() - last_write(attempt.paths) < SILENT_AFTER_S


def epoch_seconds(iso: str) -> float:
    """Seconds since the epoch; 0 for what is no time."""
    try:
        return datetime.fromisoformat(iso).timestamp()
    except ValueError:
        return 0.0


def _last_records(path: Path) -> Iterator[dict[str, Any]]:
    """Records from the last to the first; an incomplete line at either end is left out."""
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
