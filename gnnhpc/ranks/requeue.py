"""Asking Slurm for another go when a time limit or a preemption comes before the last step."""

from __future__ import annotations

import re
import subprocess
import sys

from gnnhpc.ranks.environment import Environment

AHEAD_OF_LIMIT = ("SIGUSR1", "SIGUSR2")
"""What the site has Slurm send ahead of a time limit; TERM is somebody's wish that we end."""


def requeue_if_asked(environment: Environment, received: str | None) -> bool:
    """After a checkpoint: put this job back into the queue if it ran out of time, not if killed.

    A preempted job with a grace time is told by TERM, and is not requeued if it ends within it;
    so a TERM is answered as Slurm's record of the job says.

    Says so where it cannot (scontrol may be missing on compute nodes): the cell then stands as
    interrupted, and a rerun goes on from the checkpoint.
    """
    if environment.launcher != "slurm":
        return False
    job = _name(environment)
    if received not in AHEAD_OF_LIMIT and not (received == "SIGTERM" and _is_preempted(job)):
        return False
    try:
        subprocess.run(["scontrol", "requeue", job], check=True, capture_output=True, timeout=30)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"job {job} could not be requeued ({error}); rerun goes on", file=sys.stderr)
        return False
    return True


def _is_preempted(job: str) -> bool:
    """Whether Slurm says that it is ending this job for another; no where it does not answer."""
    try:
        shown = subprocess.run(
            ["scontrol", "show", "job", job], check=True, capture_output=True, timeout=30, text=True
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return re.search(r"\bPreemptTime=\d", shown.stdout) is not None


def _name(environment: Environment) -> str:
    """This task alone: the id of an array's last task is the array's, and means all of them."""
    if environment.array_job_id and environment.array_task_id:
        return f"{environment.array_job_id}_{environment.array_task_id}"
    return str(environment.job_id)
