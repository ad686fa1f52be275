"""Which jobs a submission waits for: `--after RUN` or `--after JOB`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from gnnhpc.core.errors import GnnhpcError, InputError
from gnnhpc.records.run_paths import RunPaths
from jobs.folder.locked_files import open_run
from jobs.folder.submission_records import SubmissionRecord, read_submissions, supervisor_is_alive
from jobs.state.run_status import live_slurm_jobs

_JOB = re.compile(r"^\d+(_\d+)?$")


def jobs_to_wait_for(
    names: Sequence[str], cluster: str, tell: Callable[[str], None] | None = None
) -> list[str]:
    """Slurm's ids of the jobs named: themselves, or those that a run folder has in the queue.

    `tell` hears of runs that have none. Raises InputError as `check_after` does, GnnhpcError where
    Slurm cannot be asked.
    """
    check_after(names, cluster)
    found: list[str] = []
    for name in names:
        if not _is_run(name):
            found.append(name)
            continue
        paths = open_run(name)
        live = jobs_of_run(paths, f"--after {name}")
        if not live and tell is not None:
            tell(f"{name} {_why_no_job(read_submissions(paths))}: nothing to wait for")
        found += live
    return found


def check_after(names: Sequence[str], cluster: str) -> None:
    """Raises InputError for what is neither a run nor a job, and for a run that still runs on this
    machine, which no job can wait for; Slurm is not asked."""
    if names and cluster != "slurm":
        raise InputError("--after", None, f"{names[0]} with --cluster {cluster}", "--cluster slurm")
    for name in names:
        if not _is_run(name):
            if not _JOB.match(name):
                raise InputError("--after", None, repr(name), "a run folder, or the id of a job")
        elif any(map(supervisor_is_alive, read_submissions(open_run(name)))):
            still = f"{name}, which still runs on this machine"
            raise InputError("--after", None, still, "a run of Slurm, or the id of a job")


def _is_run(name: str) -> bool:
    return RunPaths(Path(name)).manifest.is_file()


def _why_no_job(submissions: Sequence[SubmissionRecord]) -> str:
    if submissions and all(s.cluster == "local" and s.is_of_this_host for s in submissions):
        return "ran on this machine and has ended"
    return "has no job in the queue"


def jobs_of_run(paths: RunPaths, asks: str) -> list[str]:
    """Ids of a run's jobs that wait or run; raises GnnhpcError where Slurm does not say."""
    live, answer = live_slurm_jobs(paths, read_submissions(paths))
    if not answer.answered:
        raise GnnhpcError(
            f"{asks}: Slurm does not say which jobs of {paths.root} are in its queue "
            f"({answer.error})"
        )
    return live
