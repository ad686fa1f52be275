"""What Slurm's accounting has of a run's jobs: states, seconds and CPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gnnhpc.core.slurm_commands import ask
from jobs.slurm.job_array import array_of_job, parse_indices

_FIELDS = ("JobID", "State", "JobName", "ElapsedRaw", "AllocCPUS")
_SEPARATOR = "\x1f"
_RUNNING = ("RUNNING", "SUSPENDED", "STOPPED", "COMPLETING", "SIGNALING", "RESIZING")


@dataclass(frozen=True)
class AccountedTask:
    """One start of an array task."""

    task: str
    """The task, such as 17_3."""
    state: str
    """Slurm's word, such as TIMEOUT; OUT_OF_MEMORY if a step of the task has it."""
    elapsed_s: int = 0
    cpus: int = 0

    @property
    def core_s(self) -> int:
        return self.elapsed_s * self.cpus

    @property
    def running(self) -> bool:
        return self.state in _RUNNING


def ask_sacct(
    jobs: Mapping[str, str | None], *, patience_s: float, all_starts: bool = False
) -> list[AccountedTask]:
    """The tasks of these jobs, with one question; empty where sacct gives no answer.

    `jobs` has the arrays of job ids, None where the array is not known: under an id sacct may know
    somebody else's job. `all_starts` lists each start of a requeued task, else the last alone.
    """
    if not jobs:
        return []
    command = [
        *("sacct", "--noheader", "--parsable2", f"--delimiter={_SEPARATOR}"),
        *(f"--format={','.join(_FIELDS)}", f"--jobs={','.join(sorted(jobs))}"),
        *(["--duplicates"] if all_starts else []),
    ]
    # A user's own defaults, such as SACCT_FORMAT, would change the answer.
    answer = ask(*command, timeout_s=patience_s, without="SACCT_")
    return parse_accounts(answer or "", jobs)


def parse_accounts(text: str, jobs: Mapping[str, str | None]) -> list[AccountedTask]:
    """The tasks in sacct's answer, in its order; the steps of a task follow it."""
    found: list[AccountedTask] = []
    lines = [line.split(_SEPARATOR) for line in text.splitlines()]
    for row in (dict(zip(_FIELDS, line, strict=True)) for line in lines if len(line) > 1):
        job, _, step = row["JobID"].partition(".")
        number, array = job.partition("_")[0], jobs.get(job.partition("_")[0])
        if step and found and found[-1].task == job:
            if row["State"].startswith("OUT_OF_MEMORY"):
                found[-1] = replace(found[-1], state="OUT_OF_MEMORY")
        elif not step and number in jobs and array in (None, array_of_job(row["JobName"])):
            found += [_task(name, row) for name in _array_tasks(job)]
    return found


def _task(name: str, row: Mapping[str, str]) -> AccountedTask:
    state = row["State"].split(" ")[0]
    return AccountedTask(
        task=name,
        state=state,
        elapsed_s=int(row["ElapsedRaw"] or 0),
        cpus=int(row["AllocCPUS"] or 0),
    )


def _array_tasks(job: str) -> list[str]:
    """The tasks in sacct's `12_3`, or `12_[4-6%2]` for tasks that never began."""
    number, _, tasks = job.partition("_")
    if not tasks.startswith("["):
        return [job]
    return [f"{number}_{i}" for i in parse_indices(tasks.strip("[]").partition("%")[0])]
