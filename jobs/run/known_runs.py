"""The runs of a folder, as `list` shows them: when they were made, cells and their states."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from gnnhpc.core.errors import InputError
from gnnhpc.core.run_paths import RunPaths
from jobs.run.run_state import RunState, read_run
from jobs.run.status import RunStatus, run_status
from jobs.slurm.queue import QueueAnswer, query_queue


@dataclass(frozen=True)
class KnownRun:
    """One run as `list` shows it."""

    run: Path
    created_at: float
    """Seconds since the epoch: a manifest is never rewritten."""
    status: RunStatus | str
    """For a damaged folder what is wrong with it, in one line."""


def known_runs(folder: Path) -> list[KnownRun]:
    """The runs in a folder, newest first, damaged ones too; other folders are left out.

    Slurm is asked once for all of them. Raises InputError if the folder cannot be read.
    """
    try:
        entries = [path for path in folder.iterdir() if not path.name.startswith(".")]
        manifests = [RunPaths(path).manifest for path in entries]
        created = {path.parent: path.stat().st_mtime for path in manifests if path.is_file()}
    except OSError as error:
        found = f"{error.filename or folder}: {error.strerror}"
        raise InputError("--runs", None, found, "a folder of runs") from None
    read = {run: _read_or_damage(run) for run in created}
    states = [one for one in read.values() if isinstance(one, RunState)]
    asking = [state for state in states if state.may_be_in_slurm]
    queue = QueueAnswer(time.time(), error="not asked")
    if asking:
        jobs = {job: array for state in asking for job, array in state.unfinished_jobs.items()}
        users = {name for state in asking for name in state.users}
        queue = query_queue(users, jobs)
    known = [
        KnownRun(run, created[run], one if isinstance(one, str) else run_status(one, queue))
        for run, one in read.items()
    ]
    return sorted(known, key=lambda one: (-one.created_at, one.run.name))


def _read_or_damage(run: Path) -> RunState | str:
    try:
        return read_run(run)
    except InputError as error:
        return str(error).replace(f"{run.absolute()}/", "")
