"""Calling scancel, and making sure of its effect."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from collections.abc import Iterable, Sequence

from gnnhpc.core.errors import GnnhpcError, InputError
from jobs.cluster.slurm_queue import SlurmSilentError, ask_squeue

_TIMEOUT_S = 60
PATIENCE_S = 45.0
"""Ranks have half a minute to save, by Slurm's own default (KillWait)."""
_WAITS_S = (0.5, 2.0, 5.0, 10.0)
"""Between two looks; the last one ever after, as schedulers are not to be asked more often."""


def scancel(jobs: Sequence[str]) -> None:
    """Cancel these jobs; raises GnnhpcError if scancel refuses, InputError without one here."""
    if shutil.which("scancel") is None:
        raise InputError(
            "cancel", None, f"jobs {', '.join(jobs)} and no scancel here", "their host"
        )
    try:
        done = subprocess.run(
            ["scancel", *jobs], capture_output=True, text=True, check=False, timeout=_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        raise GnnhpcError(f"scancel: no answer within {_TIMEOUT_S} s") from None
    if done.returncode:
        raise GnnhpcError(f"scancel: {' '.join(done.stderr.split())}")


def scancel_for_good(jobs: Sequence[str], users: Iterable[str]) -> set[str] | None:
    """Cancel these jobs of these users, and once more what comes back; returns those that still
    end, or None where Slurm does not say.

    A job whose ranks have just asked for its requeue, and save, does not hear scancel: it waits in
    the queue again once they have ended. Raises as `scancel` does.
    """
    scancel(jobs)
    asked = tuple(users)
    deadline = time.monotonic() + PATIENCE_S
    waits = iter(_WAITS_S)
    while True:
        time.sleep(next(waits, _WAITS_S[-1]))
        try:
            listed = [job for job in ask_squeue(asked) if job.job_id in jobs and not job.has_ended]
        except SlurmSilentError:
            return None
        back = {job.job_id for job in listed if job.state != "COMPLETING"}
        if back:
            # It refuses where a task has ended meanwhile.
            with contextlib.suppress(GnnhpcError):
                scancel(sorted(back))
        if not listed or time.monotonic() > deadline:
            return {job.job_id for job in listed}
