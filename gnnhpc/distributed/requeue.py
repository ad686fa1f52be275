"""Puts a job back into Slurm's queue when a time limit or a preemption stops it."""

from __future__ import annotations

import re
import subprocess
import sys

from gnnhpc.core.slurm_commands import ask, run_slurm
from gnnhpc.distributed.environment import Environment

BEFORE_TIME_LIMIT = ("SIGUSR1", "SIGUSR2")
"""What Slurm sends some time before the time limit, as the site's settings say."""


def requeues_used_up(environment: Environment, received: str | None) -> str | None:
    """Why a job that would be requeued now is not; None where it may be, or would not be.

    Without an end, a job that each time has no time for a step would go on for ever.
    """
    if not _in_job(environment) or environment.restart_count < environment.max_requeues:
        return None
    if not _ends_for_another_start(_job_name(environment), received):
        return None
    return _used_up(environment)


def requeued_too_often(environment: Environment) -> str | None:
    """Why a job that Slurm has started once more goes no further; None for all others.

    Slurm requeues by itself where a node fails, or a job ends too late for another.
    """
    if not _in_job(environment) or environment.restart_count <= environment.max_requeues:
        return None
    return _used_up(environment)


def _in_job(environment: Environment) -> bool:
    """Whether the ranks are what a job of Slurm's was submitted for, whoever has started them."""
    return environment.job_id is not None and environment.launcher != "alone"


def _used_up(environment: Environment) -> str:
    return (
        f"requeued {environment.restart_count} times already, and max_requeues is "
        f"{environment.max_requeues}: a rerun resumes"
    )


def requeue_if_interrupted(environment: Environment, received: str | None) -> bool:
    """After a checkpoint: requeue this job if it ran out of time or was preempted.

    A cancelled job is not requeued. Both preemption and `scancel` send TERM, so after a TERM
    Slurm is asked which it was; Slurm does not itself requeue a preempted job that ends within
    its grace time.

    True if requeued. Prints a line where it cannot (scontrol may be missing on compute nodes): the
    cell then counts as interrupted, and a rerun resumes from the checkpoint.
    """
    if not _in_job(environment) or environment.restart_count >= environment.max_requeues:
        return False
    job = _job_name(environment)
    if not _ends_for_another_start(job, received):
        return False
    try:
        run_slurm("scontrol", "requeue", job, timeout_s=30)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"job {job} could not be requeued ({error}); a rerun resumes", file=sys.stderr)
        return False
    return True


def _ends_for_another_start(job: str, received: str | None) -> bool:
    """Whether the job ends by its time limit or for another one, not by its user's will."""
    return received in BEFORE_TIME_LIMIT or (received == "SIGTERM" and _is_preempted(job))


def _is_preempted(job: str) -> bool:
    """Whether Slurm says that it ends this job for another one; false if it does not answer."""
    shown = ask("scontrol", "show", "job", job, timeout_s=30)
    return re.search(r"\bPreemptTime=\d", shown or "") is not None


def _job_name(environment: Environment) -> str:
    """This array task alone: the last task has the array's own job id, which means all tasks."""
    if environment.array_job_id and environment.array_task_id:
        return f"{environment.array_job_id}_{environment.array_task_id}"
    return str(environment.job_id)
