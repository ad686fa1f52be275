"""The runs of a folder, as `list` shows them: age, cells and their states."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from gnnhpc.core.errors import InputError
from gnnhpc.core.run_paths import RunPaths
from gnnhpc.records.submissions import read_provenance
from jobs.run.run_state import RunState, read_run
from jobs.run.status import RunStatus, run_status
from jobs.slurm.queue import QueueAnswer, query_queue


@dataclass(frozen=True)
class KnownRun:
    """One run as `list` shows it."""

    run: Path
    created_at: float
    """Seconds since the epoch."""
    status: RunStatus | None
    """None for a damaged folder."""
    damage: str | None = None
    """What is wrong with the folder, in one line."""


def known_runs(folder: Path) -> list[KnownRun]:
    """The runs in a folder, newest first, damaged ones too; other folders are left out.

    Slurm is asked once for all of them. Raises InputError if the folder cannot be read.
    """
    try:
        runs = sorted(path for path in folder.iterdir() if _looks_like_a_run(path))
    except OSError as error:
        found = f"{folder}: {error.strerror}"
        raise InputError("--runs", None, found, "a folder of runs") from None
    read = {run: _read_or_damage(run) for run in runs}
    states = [one for one in read.values() if isinstance(one, RunState)]
    asking = [one for one in states if one.unfinished and one.may_be_in_slurm]
    queue = QueueAnswer(time.time(), error="not asked")
    if asking:
        jobs = {job: array for state in asking for job, array in state.unfinished_jobs.items()}
        users = {name for state in asking for name in state.users}
        queue = query_queue(folder.absolute(), users, jobs)
    found_runs = [_known_run(run, one, queue) for run, one in read.items()]
    return sorted(found_runs, key=lambda one: (-one.created_at, one.run.name))


def _known_run(run: Path, read: RunState | str, queue: QueueAnswer) -> KnownRun:
    try:
        facts = read_provenance(RunPaths(run)) or {}
        created_at = datetime.fromisoformat(str(facts["created_at"])).timestamp()
    except (InputError, OSError, KeyError, ValueError):
        created_at = run.stat().st_mtime
    if isinstance(read, str):
        return KnownRun(run, created_at, None, read)
    return KnownRun(run, created_at, run_status(read, queue))


def _looks_like_a_run(path: Path) -> bool:
    """Whether it has a file that only submitted runs have; one that nobody may enter may be one.

    A folder of runs by hand has cells, and neither a manifest nor provenance.
    """
    paths = RunPaths(path)
    if path.name.startswith(".") or not path.is_dir():
        return False
    try:
        files = (paths.manifest, paths.provenance, paths.submissions)
        return any(file.exists() for file in files)
    except OSError:
        return True


def _read_or_damage(run: Path) -> RunState | str:
    try:
        return read_run(run)
    except InputError as error:
        return str(error).replace(f"{run.absolute()}/", "")
    except OSError as error:
        return f"{error.filename or run}: unreadable ({error.strerror})"
