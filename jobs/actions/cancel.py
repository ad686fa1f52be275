"""Ending what a run still has on its way."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

from gnnhpc.core.errors import GnnhpcError, InputError
from jobs.folder import submission_records as submissions
from jobs.folder.locked_files import open_run
from jobs.state.run_status import live_jobs

PATIENCE_S = 30.0


def cancel(run: str | Path, array: str | None = None) -> list[str]:
    """Cancel a run's Slurm arrays and stop its local supervisors; returns what was told to end.

    `array` cancels that array alone, which a local supervisor cannot. Raises InputError for an
    unknown array, GnnhpcError if scancel refuses.
    """
    paths = open_run(run)
    entries = submissions.read(paths)
    known = {path.stem for path in paths.arrays.glob("*.sbatch")}
    if array is not None and array not in known:
        raise InputError("--array", None, repr(array), ", ".join(sorted(known)))
    alive = {entry.job_id: entry for entry in entries if submissions.supervised(entry)}
    if array is not None and alive:
        raise InputError("--array", None, "a local run", "no --array, one process runs all of them")
    ended = []
    for pid in sorted(alive):
        os.kill(int(pid), signal.SIGTERM)
        ended.append(f"local supervisor {pid}")
    # Its ranks are given time to save what they have.
    deadline = time.monotonic() + PATIENCE_S
    while any(map(submissions.supervised, alive.values())) and time.monotonic() < deadline:
        time.sleep(0.1)
    jobs = live_jobs(paths, entries, array)
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
