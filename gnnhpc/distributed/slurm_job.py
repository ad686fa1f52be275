"""What a rank asks Slurm of its own job: to be requeued, and which other jobs share its nodes."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass

from gnnhpc.core.slurm_commands import ask, run_slurm, variables_without
from gnnhpc.distributed.environment import Environment
from gnnhpc.records.result_file import slurm_job, without_cluster

BEFORE_TIME_LIMIT = ("SIGUSR1", "SIGUSR2")
"""What Slurm sends some time before the time limit, as the site's settings say."""
_TIMEOUT_S = 30.0
_TIMEOUT_OF_OTHERS_S = 5.0
"""Seconds for each query of other jobs; a cell must not wait for a controller that is down."""


def is_interrupted(environment: Environment, received: str | None) -> bool:
    """Whether a signal ends this job for its time limit or another job, not by its user's will.

    Both preemption and `scancel` send TERM, so after a TERM Slurm is asked which it was; Slurm does
    not itself requeue a preempted job that ends within its grace time.
    """
    if not _in_job(environment):
        return False
    if received != "SIGTERM":
        return received in BEFORE_TIME_LIMIT
    shown = ask("scontrol", "show", "job", _job(environment), timeout_s=_TIMEOUT_S)
    return re.search(r"\bPreemptTime=\d", shown or "") is not None


def requeues_used_up(environment: Environment, restarts: int) -> str | None:
    """Why a job may not be started again so many times; None where it may.

    Without an end, a job that each time has no time for a step would go on for ever. Slurm requeues
    by itself where a node fails, or a job ends too late for another.
    """
    count, most = environment.restart_count, environment.max_requeues
    if not _in_job(environment) or restarts <= most:
        return None
    return f"requeued {count} times already, and max_requeues is {most}: a rerun resumes"


def requeue(environment: Environment) -> None:
    """Put this job back into the queue.

    Prints a line where Slurm does not (scontrol may be missing on compute nodes): the cell then
    counts as interrupted, and a rerun resumes from the checkpoint.
    """
    job = _job(environment)
    try:
        run_slurm("scontrol", "requeue", job, timeout_s=_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"job {job} could not be requeued ({error}); a rerun resumes", file=sys.stderr)


def _in_job(environment: Environment) -> bool:
    """Whether the ranks are what a job of Slurm's was submitted for, whoever has started them."""
    return environment.job_id is not None and environment.launcher != "alone"


def _job(environment: Environment) -> str:
    """This array task alone: the last task has the array's own job id, which means all tasks."""
    return without_cluster(slurm_job(environment.slurm) or "")


@dataclass(frozen=True)
class OtherJobs:
    """What Slurm reports of a job's nodes at one time."""

    jobs: tuple[str, ...]
    """Ids of the jobs that run there, less this one's; a cluster may hide other users'."""
    cpus: int | None = None
    """CPUs there that are given to jobs, less this one's; None where scontrol does not say."""


def other_jobs(environment: Environment) -> OtherJobs | None:
    """Other jobs on the nodes of this process's job, which take caches and memory, if not CPUs.

    None outside Slurm's jobs, and where squeue is missing, fails or does not answer in time.
    """
    nodes, job = environment.slurm.get("SLURM_JOB_NODELIST"), environment.job_id
    if not nodes or not job:
        return None
    listed = _ask_others(
        "squeue", "--all", "--noheader", "--states=RUNNING", f"--nodelist={nodes}", "--format=%A"
    )
    if listed is None:
        return None
    shown = _ask_others("scontrol", "--oneliner", "show", "node", nodes)
    allocated = re.findall(r"\bCPUAlloc=(\d+)", shown or "")
    # This job's, such as `16(x2),8`.
    own = re.findall(r"(\d+)(?:\(x(\d+)\))?", environment.slurm.get("SLURM_JOB_CPUS_PER_NODE", ""))
    cpus = sum(map(int, allocated)) - sum(int(n) * int(times or 1) for n, times in own)
    others = sorted(set(listed.split()) - {job})
    return OtherJobs(tuple(others), max(0, cpus) if allocated and own else None)


def _ask_others(*command: str) -> str | None:
    return ask(*command, timeout_s=_TIMEOUT_OF_OTHERS_S, environment=variables_without("SQUEUE_"))
