"""Cancels a run's jobs in Slurm and stops its local supervisors."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from gnnhpc.core.errors import InputError
from gnnhpc.records.run_paths import RunPaths
from jobs.cluster.arrays import parse_part_label
from jobs.cluster.scancel import scancel_for_good
from jobs.cluster.slurm_queue import forget_answers
from jobs.folder.locked_files import open_run
from jobs.folder.run_blocks import read_blocks
from jobs.folder.submission_records import (
    SubmissionRecord,
    read_submissions,
    supervisor_is_alive,
)
from jobs.state.run_reading import slurm_users
from jobs.state.run_status import live_slurm_jobs, slurm_arrays

SUPERVISOR_GRACE_S = 30.0


def cancel(run: str | Path, array: str | None = None, *, force: bool = False) -> list[str]:
    """Cancel a run's Slurm arrays and stop its local supervisors; returns a line each.

    Waits while their ranks save, for at most 45 seconds in Slurm, as jobs may come back into the
    queue then, and half a minute here.

    `array` cancels that array alone, which is not possible for a local run; `force` cancels all
    recorded jobs where Slurm does not say which of them have ended. Raises InputError for an
    unknown array, and without `force` for such jobs; GnnhpcError if scancel refuses; then nothing
    was stopped.
    """
    paths = open_run(run)
    submissions = read_submissions(paths)
    known = {parse_part_label(path.stem)[0] for path in paths.arrays.glob("*.sbatch")}
    if array is not None and array not in known:
        raise InputError("--array", None, repr(array), ", ".join(sorted(known)))
    alive = {
        submission.job_id: submission
        for submission in submissions
        if supervisor_is_alive(submission)
    }
    if array is not None and alive:
        raise InputError("--array", None, "a local run", "no --array, one process runs all of them")
    # Before anything is stopped: what Slurm refuses or does not say must not hide that.
    jobs = _jobs_to_cancel(paths, submissions, array, force=force)
    if not jobs and array is not None:
        _check_not_in_blocks(paths, array)
    ended = _cancel_jobs(paths, jobs, slurm_users(submissions)) if jobs else []
    for pid in sorted(pid for pid, one in alive.items() if supervisor_is_alive(one)):
        os.kill(int(pid), signal.SIGTERM)
        ended.append(f"local supervisor {pid}")
    # The ranks get time to save a checkpoint.
    deadline = time.monotonic() + SUPERVISOR_GRACE_S
    while any(map(supervisor_is_alive, alive.values())) and time.monotonic() < deadline:
        time.sleep(0.1)
    return ended


def _cancel_jobs(paths: RunPaths, jobs: Sequence[str], users: set[str]) -> list[str]:
    """Cancel these jobs of Slurm's; a line each."""
    try:
        left = scancel_for_good(jobs, users)
    finally:
        # They are of before; a `status` or `list` that comes next is to see what was cancelled.
        forget_answers()
    if left is None:
        unknown = ", but Slurm does not say whether it has ended"
        return [f"Slurm job {job}{unknown}" for job in jobs]
    return [
        f"Slurm job {job}" + (", whose ranks have not ended yet" if job in left else "")
        for job in jobs
    ]


def _check_not_in_blocks(paths: RunPaths, array: str) -> None:
    """Raises InputError for an array whose cells are measured in blocks, with those of others."""
    for name, lines in read_blocks(paths).tables.items():
        if any(line.array == array for line in lines):
            found = f"{array}, whose cells are in blocks with others"
            raise InputError("--array", None, found, f"{name}, or no --array")


def _jobs_to_cancel(
    paths: RunPaths, submissions: list[SubmissionRecord], array: str | None, *, force: bool
) -> list[str]:
    """Jobs that Slurm says are this run's; with `force` those that it does not speak of too."""
    jobs, answer = live_slurm_jobs(paths, submissions, array)
    if answer.answered:
        return jobs
    spoken_of = {task.partition("_")[0] for task in answer.accounted}
    recorded = slurm_arrays(submissions).items()
    unsure = {job for job, name in recorded if array in (None, name)} - spoken_of
    if unsure and not force:
        shown = ", ".join(sorted(unsure)[:5]) + (", ..." if len(unsure) > 5 else "")
        raise InputError(
            "cancel",
            None,
            f"jobs {shown}, which may have ended, their ids another's by now: Slurm does not say "
            f"({answer.error})",
            "to try again, or --force",
        )
    return sorted({*jobs, *unsure})
