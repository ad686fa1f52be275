"""Which other jobs Slurm has on a job's nodes: they take caches and memory, if not CPUs."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gnnhpc.core.slurm_commands import ask
from gnnhpc.distributed.environment import Environment

_TIMEOUT_S = 5.0
"""Seconds for each query; a cell must not wait for a controller that does not answer."""


@dataclass(frozen=True)
class OtherJobs:
    """What Slurm reports of a job's nodes at one time."""

    jobs: tuple[str, ...]
    """Ids of the jobs that run there, less this one's; a cluster may hide other users'."""
    cpus: int | None = None
    """CPUs there that are given to jobs, less this one's; None where scontrol does not say."""


def other_jobs(environment: Environment) -> OtherJobs | None:
    """The other jobs on the nodes of this process's job.

    None outside Slurm's jobs, and where squeue is missing, fails or does not answer in time.
    """
    facts = dict(environment.slurm)
    nodes, job = facts.get("SLURM_JOB_NODELIST"), environment.job_id
    if not nodes or not job:
        return None
    listed = _ask(
        "squeue", "--all", "--noheader", "--states=RUNNING", f"--nodelist={nodes}", "--format=%A"
    )
    if listed is None:
        return None
    others = sorted(set(listed.split()) - {job})
    shown = _ask("scontrol", "--oneliner", "show", "node", nodes)
    own = facts.get("SLURM_JOB_CPUS_PER_NODE")
    return OtherJobs(tuple(others), _other_cpus(shown, own))


def _other_cpus(shown: str | None, own: str | None) -> int | None:
    given = re.findall(r"\bCPUAlloc=(\d+)", shown or "")
    if not given or not own:
        return None
    return max(0, sum(map(int, given)) - _total_cpus(own))


def _total_cpus(text: str) -> int:
    """The sum of Slurm's `16(x2),8`."""
    return sum(int(n) * int(times or 1) for n, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text))


def _ask(*command: str) -> str | None:
    return ask(*command, timeout_s=_TIMEOUT_S, without="SQUEUE_")
