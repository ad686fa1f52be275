"""Puts a job back into Slurm's queue when a time limit or a preemption stops it."""

from __future__ import annotations

import re
import subprocess
import sys

from gnnhpc.core.slurm_commands import ask, run_slurm
from gnnhpc.distributed.environment import Environment

BEFORE_TIME_LIMIT = ("SIGUSR1", "SIGUSR2")
"""What Slurm sends some time before the time limit, as the site's settings say."""


def is_interrupted(environment: Environment, received: str | None) -> bool:
    """Whether a signal ends this job for its time limit or another job, not by its user's will.

    Both preemption and `scancel` send TERM, so after a TERM Slurm is asked which it was; Slurm does
    not itself requeue a preempted job that ends within its grace time.
    """
    if not _in_job(environment):
        return False
    preempted = received == "SIGTERM" and _is_preempted(_job_name(environment))
    return preempted or received in BEFORE_TIME_LIMIT


def requeues_used_up(environment: Environment, restarts: int) -> str | None:
    """Why a job may not be started again so many times; None where it may.

    Without an end, a job that each time has no time for a step would go on for ever. Slurm requeues
    by itself where a node fails, or a job ends too late for another.
    """
    if not _in_job(environment) or restarts <= environment.max_requeues:
        return None
    return (
        f"requeued {environment.restart_count} times already, and max_requeues is "
        f"{environment.max_requeues}: a rerun resumes"
    )


def requeue(environment: Environment) -> bool:
    """Put this job back into the queue; true if Slurm does.

    Prints a line where it does not (scontrol may be missing on compute nodes): the cell then counts
    as interrupted, and a rerun resumes from the checkpoint.
    """
    job = _job_name(environment)
    try:
        run_slurm("scontrol", "requeue", job, timeout_s=30)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"job {job} could not be requeued ({error}); a rerun resumes", file=sys.stderr)
        return False
    return True


def _in_job(environment: Environment) -> bool:
    """Whether the ranks are what a job of Slurm's was submitted for, whoever has started them."""
    return environment.job_id is not None and environment.launcher != "alone"


def _is_preempted(job: str) -> bool:
    """Whether Slurm says that it ends this job for another one; false if it does not answer."""
    shown = ask("scontrol", "show", "job", job, timeout_s=30)
    return re.search(r"\bPreemptTime=\d", shown or "") is not None


def _job_name(environment: Environment) -> str:
    """This array task alone: the last task has the array's own job id, which means all tasks."""
    if environment.array_job_id and environment.array_task_id:
        return f"{environment.array_job_id}_{environment.array_task_id}"
    return str(environment.job_id)
