"""The runs of a folder: their states with one question to Slurm, their sizes and ages."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from gnnhpc.core.errors import InputError
from gnnhpc.records.run_facts import read_provenance
from gnnhpc.records.run_paths import RunPaths
from jobs.cluster.slurm_queue import QueueAnswer, query_queue
from jobs.folder.disk_use import disk_use
from jobs.state.run_reading import ReadRun, read_run
from jobs.state.run_status import RunStatus, judge


@dataclass(frozen=True)
class KnownRun:
    """One run as `list` shows it."""

    run: Path
    created_at: float
    """Seconds since the epoch."""
    size: int | None
    """Bytes on disk; None where a part of the folder is unreadable."""
    status: RunStatus | None
    """None for a damaged folder."""
    damage: str | None = None
    """What is wrong with the folder, in one line."""


def known_runs(folder: Path) -> list[KnownRun]:
    """The runs in a folder, newest first, damaged ones too; what is no run is left out.

    Slurm is asked once for all of them, and only if it may have a job of one. Raises InputError if
    the folder cannot be read.
    """
    read: dict[Path, ReadRun | str] = {run: _read(run) for run in _run_folders(folder)}
    answer = _ask_slurm(folder, [one for one in read.values() if isinstance(one, ReadRun)])
    found = [_known_run(run, one, answer) for run, one in read.items()]
    return sorted(found, key=lambda one: (-one.created_at, one.run.name))


def _run_folders(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if _looks_like_a_run(path))
    except OSError as error:
        raise InputError(
            "--runs", None, f"{folder}: {error.strerror}", "a folder of runs"
        ) from None


def _looks_like_a_run(path: Path) -> bool:
    """Whether it has anything that only runs have; a folder that nobody may enter may be one."""
    paths = RunPaths(path)
    if path.name.startswith(".") or not path.is_dir():
        return False
    try:
        return any(
            mark.exists()
            for mark in (paths.manifest, paths.provenance, paths.submissions, paths.cells)
        )
    except OSError:
        return True


def _read(run: Path) -> ReadRun | str:
    """The run, or what is wrong with it."""
    try:
        return read_run(run)
    except InputError as error:
        return str(error).replace(f"{run.absolute()}/", "")
    except OSError as error:
        return f"{error.filename or run}: unreadable ({error.strerror})"


def _ask_slurm(folder: Path, runs: Iterable[ReadRun]) -> QueueAnswer:
    """One answer for all runs that Slurm may have a job of."""
    asking = [run for run in runs if run.may_change]
    if not asking:
        return QueueAnswer(time.time(), error="not asked")
    named = [item for run in asking for item in run.jobs.items()]
    arrays = dict(named)
    # Runs of two clusters may know different jobs by one id.
    doubtful = {job for job, array in named if array != arrays[job]}
    users = {name for run in asking for name in run.users}
    certain = {job: array for job, array in arrays.items() if job not in doubtful}
    return query_queue(folder.absolute(), users, certain)


def _known_run(run: Path, read: ReadRun | str, answer: QueueAnswer) -> KnownRun:
    if isinstance(read, str):
        return KnownRun(run, _created_at(run), disk_use(run), None, read)
    return KnownRun(run, _created_at(run), disk_use(run), judge(read, answer))


def _created_at(run: Path) -> float:
    """When the run was submitted, else when its folder was last written to."""
    try:
        facts = read_provenance(RunPaths(run)) or {}
        return datetime.fromisoformat(str(facts["created_at"])).timestamp()
    except (InputError, OSError, KeyError, ValueError):
        return run.stat().st_mtime
