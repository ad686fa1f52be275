"""What Slurm's accounting has of a run's jobs: seconds, CPUs, processor time, energy."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from gnnhpc.core.slurm_commands import ask
from jobs.slurm.job_array import array_of_job

_FIELDS = ("JobID", "ElapsedRaw", "AllocCPUS", "TotalCPU", "ConsumedEnergyRaw", "State", "JobName")
_SEPARATOR = "\x1f"
_PATIENCE_S = 60.0
_RUNNING = ("RUNNING", "SUSPENDED", "STOPPED", "COMPLETING", "SIGNALING", "RESIZING")
_TOTAL_CPU = re.compile(r"^(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+(?:\.\d+)?)$")


@dataclass(frozen=True)
class AccountedTask:
    """One start of an array task."""

    task: str
    """The task, such as 17_3; a requeued task has one entry a start."""
    elapsed_s: int
    cpus: int
    cpu_s: float | None
    """Processor time; None while it runs, or where Slurm does not gather it."""
    energy_j: float | None = None
    """Energy of its nodes while its ranks ran; None where Slurm does not measure it."""
    running: bool = False

    @property
    def core_s(self) -> int:
        return self.elapsed_s * self.cpus


def ask_sacct(jobs: Mapping[str, str | None]) -> list[AccountedTask] | None:
    """Each start of each task of these jobs, with one question; None where sacct gives no answer.

    `jobs` has the arrays of job ids: under an id sacct may know somebody else's job. None where the
    array is not known.
    """
    if not jobs:
        return None
    command = (
        "sacct",
        "--noheader",
        "--parsable2",
        "--duplicates",
        f"--delimiter={_SEPARATOR}",
        f"--format={','.join(_FIELDS)}",
        f"--jobs={','.join(sorted(jobs))}",
    )
    # A user's own defaults, such as SACCT_FORMAT, would be taken for what was asked.
    answer = ask(*command, timeout_s=_PATIENCE_S, without="SACCT_")
    return None if answer is None else parse_accounts(answer, jobs)


def parse_accounts(text: str, jobs: Mapping[str, str | None]) -> list[AccountedTask]:
    """The tasks in sacct's answer that began, in its order; their steps follow each in it.

    Energy is that of the numbered steps, which are srun's: those of the batch script and of Slurm's
    own last for the same time on the same nodes.
    """
    found: list[AccountedTask] = []
    ours = False
    for row in _rows(text):
        task, _, step = row["JobID"].partition(".")
        if not step:
            ours = _is_ours(row, jobs)
            started = ours and int(row["ElapsedRaw"] or 0) > 0
            found += [_task(row)] if started else []
            ours = started
        elif ours and step.isdecimal() and found and found[-1].task == task:
            energy = _positive(row["ConsumedEnergyRaw"])
            if energy is not None:
                found[-1] = replace(found[-1], energy_j=(found[-1].energy_j or 0.0) + energy)
    return found


def _rows(text: str) -> Iterator[dict[str, str]]:
    for line in text.splitlines():
        values = line.split(_SEPARATOR)
        if len(values) == len(_FIELDS):
            yield dict(zip(_FIELDS, values, strict=True))


def _is_ours(row: dict[str, str], jobs: Mapping[str, str | None]) -> bool:
    number = row["JobID"].partition("_")[0]
    array = jobs.get(number)
    return number in jobs and (array is None or array_of_job(row["JobName"])[0] == array)


def _task(row: dict[str, str]) -> AccountedTask:
    running = row["State"].split(" ")[0] in _RUNNING
    return AccountedTask(
        task=row["JobID"],
        elapsed_s=int(row["ElapsedRaw"]),
        cpus=int(row["AllocCPUS"] or 0),
        cpu_s=None if running else cpu_seconds(row["TotalCPU"]),
        running=running,
    )


def cpu_seconds(text: str) -> float | None:
    """Slurm's `1-02:03:04`, `02:03:04` or `03:04.567` in seconds; None for none or nothing else."""
    match = _TOTAL_CPU.match(text.strip())
    if match is None:
        return None
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    # No process takes no time: Slurm writes 0 where it gathers nothing.
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds or None


def _positive(text: str) -> float | None:
    """None for what is empty or zero, as Slurm writes what it does not measure."""
    with contextlib.suppress(ValueError):
        return float(text) or None
    return None
