"""Cancels a run's jobs in Slurm and stops its local supervisors."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

from gnnhpc.core.errors import GnnhpcError, InputError
from jobs.folder.locked_files import open_run
from jobs.folder.submission_records import read_submissions, supervisor_is_alive
from jobs.state.run_status import live_slurm_jobs

SUPERVISOR_GRACE_S = 30.0


def cancel(run: str | Path, array: str | None = None) -> list[str]:
    """Cancel a run's Slurm arrays and stop its local supervisors; returns a line each.

    `array` cancels that array alone, which is not possible for a local run. Raises InputError for
    an unknown array, GnnhpcError if scancel refuses.
    """
    paths = open_run(run)
    submissions = read_submissions(paths)
    known = {path.stem for path in paths.arrays.glob("*.sbatch")}
    if array is not None and array not in known:
        raise InputError("--array", None, repr(array), ", ".join(sorted(known)))
    alive = {
        submission.job_id: submission
        for submission in submissions
        if supervisor_is_alive(submission)
    }
    if array is not None and alive:
        raise InputError("--array", None, "a local run", "no --array, one process runs all of them")
    ended = []
    for pid in sorted(alive):
        os.kill(int(pid), signal.SIGTERM)
        ended.append(f"local supervisor {pid}")
    # The ranks get time to save a checkpoint.
    deadline = time.monotonic() + SUPERVISOR_GRACE_S
    while any(map(supervisor_is_alive, alive.values())) and time.monotonic() < deadline:
        time.sleep(0.1)
    jobs = live_slurm_jobs(paths, submissions, array)
    if jobs:
        _scancel(jobs)
        ended += [f"Slurm job {job}" for job in jobs]
    return ended


def _scancel(jobs: list[str]) -> None:
    if shutil.which("scancel") is None:
        raise InputError(
            "cancel", None, f"jobs {', '.join(jobs)} and no scancel here", "their host"
        )
    done = subprocess.run(
        ["scancel", *jobs], capture_output=True, text=True, check=False, timeout=60
    )
    if done.returncode:
        raise GnnhpcError(f"scancel: {' '.join(done.stderr.split())}")
