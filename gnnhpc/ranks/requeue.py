"""Puts a job back into Slurm's queue when a time limit or a preemption stops it."""

from __future__ import annotations

import re
import subprocess
import sys

from gnnhpc.ranks.environment import Environment

BEFORE_TIME_LIMIT = ("SIGUSR1", "SIGUSR2")
"""What Slurm sends some time before the time limit, as the site's settings say."""


def requeue_if_interrupted(environment: Environment, received: str | None) -> bool:
    """After a checkpoint: requeue this job if it ran out of time or was preempted.

    A cancelled job is not requeued. Both preemption and `scancel` send TERM, so after a TERM
    Slurm is asked which it was; Slurm does not itself requeue a preempted job that ends within
    its grace time.

    True if requeued. Prints a line where it cannot (scontrol may be missing on compute nodes): the
    cell then counts as interrupted, and a rerun resumes from the checkpoint.
    """
    if environment.launcher != "slurm":
        return False
    job = _job_name(environment)
    if received not in BEFORE_TIME_LIMIT and not (received == "SIGTERM" and _is_preempted(job)):
        return False
    try:
        subprocess.run(["scontrol", "requeue", job], check=True, capture_output=True, timeout=30)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"job {job} could not be requeued ({error}); a rerun resumes", file=sys.stderr)
        return False
    return True


def _is_preempted(job: str) -> bool:
    """Whether Slurm says that it ends this job for another one; false if it does not answer."""
    try:
        shown = subprocess.run(
            ["scontrol", "show", "job", job], check=True, capture_output=True, timeout=30, text=True
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return re.search(r"\bPreemptTime=\d", shown.stdout) is not None


def _job_name(environment: Environment) -> str:
    """This array task alone: the last task has the array's own job id, which means all tasks."""
    if environment.array_job_id and environment.array_task_id:
        return f"{environment.array_job_id}_{environment.array_task_id}"
    return str(environment.job_id)
