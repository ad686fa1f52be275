"""What Slurm says about jobs: squeue about those in the queue, sacct about all that it knows.

`status` and `list` keep an answer for ten seconds in the user's cache folder, so that one a second
in a loop costs the scheduler no more than one question in ten.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from gnnhpc.core.errors import InputError
from gnnhpc.core.slurm_commands import ask, run_slurm, variables_without
from gnnhpc.core.versioned_json import build_record, read_object, write_atomically
from jobs.slurm.job_array import array_of_job, parse_indices

KEPT_S = 10.0
NO_SLURM = "no Slurm here"
ENDED_STATES = frozenset((
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL",
    "OUT_OF_MEMORY", "PREEMPTED", "RECONFIG_FAIL", "REVOKED", "TIMEOUT",
))  # fmt: skip
"""Slurm's states of jobs that have ended; in any other state a job may run."""
WAITING_STATES = frozenset((
    "PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT",
    "CONFIGURING",
))  # fmt: skip
_PATIENCE_S = 10.0
"""Time for a call of squeue or sacct."""
_SEPARATOR = "\x1f"
_QUEUE_FIELDS = ("%i", "%T", "%r", "%j", "%o", "%k")
_ACCOUNT_FIELDS = ("JobID", "State", "JobName", "ElapsedRaw", "AllocCPUS")


@dataclass(frozen=True)
class QueuedJob:
    """One array task in the queue, or a range of pending ones."""

    job_id: str
    task_ids: str
    """Task ids as Slurm writes them; empty if the job is no array."""
    state: str
    reason: str
    """Why it waits; empty until Slurm has considered it."""
    name: str
    script: str
    """Path of the batch script that was submitted."""
    comment: str

    @property
    def array(self) -> str:
        return array_of_job(self.name)

    def numbers(self) -> list[int]:
        """Indices of the cells, or numbers of the blocks."""
        return parse_indices(self.task_ids.partition("%")[0]) if self.task_ids else []


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
    def has_ended(self) -> bool:
        return self.state in ENDED_STATES


@dataclass(frozen=True)
class QueueAnswer:
    """Slurm's answer at time `at` (seconds since the epoch)."""

    at: float
    jobs: tuple[QueuedJob, ...] = ()
    accounted: dict[str, AccountedTask] = field(default_factory=dict)
    """Array tasks that sacct has, or that ended just now."""
    error: str | None = None
    """Why squeue gave no answer; None if it did."""

    @property
    def answered(self) -> bool:
        return self.error is None


def query_queue(
    users: Iterable[str], jobs: Mapping[str, str | None], *, kept_for: Path | None = None
) -> QueueAnswer:
    """The queued jobs of these users, and what sacct says of `jobs`.

    `jobs` has the arrays of job ids, None where an array is not known. `kept_for` is a run folder
    or a folder of runs, for which an answer of the last ten seconds will do.
    """
    from gnnhpc.data.data_files import cache_root

    if shutil.which("squeue") is None:
        return QueueAnswer(time.time(), error=NO_SLURM)
    names = sorted(set(users))
    question = repr((str(kept_for), names, sorted(jobs.items()), os.environ.get("SLURM_CONF")))
    path = cache_root() / f"slurm-{hashlib.sha256(question.encode()).hexdigest()[:12]}.json"
    answer = _kept_answer(path) if kept_for else None
    if answer is None:
        answer = _ask_slurm(names, jobs)
        if kept_for and answer.answered:
            _keep(answer, path)
    return answer


def _kept_answer(path: Path) -> QueueAnswer | None:
    """The kept answer if it is at most ten seconds old."""
    with contextlib.suppress(OSError, InputError):
        answer = build_record(QueueAnswer, read_object(path, "an answer of Slurm"), path)
        if 0 <= time.time() - answer.at < KEPT_S:
            return answer
    return None


def _keep(answer: QueueAnswer, path: Path) -> None:
    """Write an answer and remove older ones; where that is impossible, Slurm is asked each time."""
    with contextlib.suppress(OSError):
        for other in path.parent.glob("slurm-*.json"):
            if time.time() - other.stat().st_mtime > KEPT_S:
                other.unlink(missing_ok=True)
        write_atomically(path, json.dumps(asdict(answer)))


def _ask_slurm(users: list[str], jobs: Mapping[str, str | None]) -> QueueAnswer:
    now = time.time()
    try:
        listed, error = ask_squeue(users), None
    except SlurmSilentError as silent:
        listed, error = [], str(silent)
    accounted = {task.task: task for task in ask_sacct(jobs)}
    for job in listed:
        # Slurm lists a job for some minutes after its end, and the accounting may not have it yet.
        if job.state in ENDED_STATES and jobs.get(job.job_id, "") in (None, job.array):
            for task in (f"{job.job_id}_{number}" for number in job.numbers()):
                if task not in accounted or not accounted[task].has_ended:
                    accounted[task] = AccountedTask(task, job.state)
    queued = tuple(job for job in listed if job.state not in ENDED_STATES)
    return QueueAnswer(now, queued, accounted, error)


class SlurmSilentError(Exception):
    """squeue gave no answer; the message says why in one line."""


def ask_squeue(users: Iterable[str]) -> list[QueuedJob]:
    """The jobs of these users that are queued or have just ended, also in hidden partitions.

    Raises SlurmSilentError where squeue gives no answer.
    """
    which = ("--all", "--states=all", f"--user={','.join(sorted(set(users)))}")
    try:
        text = run_slurm(
            *("squeue", *which, "--noheader", f"--format={_SEPARATOR.join(_QUEUE_FIELDS)}"),
            timeout_s=_PATIENCE_S,
            environment=variables_without("SQUEUE_") | {"SLURM_BITSTR_LEN": "0"},
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise SlurmSilentError(error_line(error)) from None
    found = []
    for row in (line.split(_SEPARATOR) for line in text.split("\n")):
        if len(row) == len(_QUEUE_FIELDS):
            (job_id, _, tasks), (state, reason, *others) = row[0].partition("_"), row[1:]
            reason = "" if reason == "None" else reason
            found.append(QueuedJob(job_id, tasks.strip("[]"), state, reason, *others))
    return found


def error_line(error: Exception) -> str:
    """Why a command of Slurm's gave no answer, in one line."""
    if isinstance(error, subprocess.TimeoutExpired):
        return f"{error.cmd[0]} gave no answer within {error.timeout:.0f} s"
    lines = str(getattr(error, "stderr", None) or error).split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), type(error).__name__)


def ask_sacct(
    jobs: Mapping[str, str | None], *, patience_s: float = _PATIENCE_S, all_starts: bool = False
) -> list[AccountedTask]:
    """The tasks of these jobs, with one question; empty where sacct gives no answer.

    `jobs` has the arrays of job ids, None where the array is not known: under an id sacct may know
    somebody else's job. `all_starts` lists each start of a requeued task, else the last alone.
    """
    if not jobs:
        return []
    command = [
        *("sacct", "--noheader", "--parsable2", f"--delimiter={_SEPARATOR}"),
        *(f"--format={','.join(_ACCOUNT_FIELDS)}", f"--jobs={','.join(sorted(jobs))}"),
        *(["--duplicates"] if all_starts else []),
    ]
    answer = ask(*command, timeout_s=patience_s, environment=variables_without("SACCT_"))
    found: list[AccountedTask] = []
    for line in (answer or "").splitlines():
        name, word, job_name, seconds, cpus = line.split(_SEPARATOR)
        job, _, step = name.partition(".")
        number, state = job.partition("_")[0], word.split(" ")[0]
        # The steps of a task follow it.
        if step and found and found[-1].task == job:
            if state == "OUT_OF_MEMORY":
                found[-1] = replace(found[-1], state=state)
        elif not step and number in jobs and jobs[number] in (None, array_of_job(job_name)):
            spent = int(seconds or 0), int(cpus or 0)
            found += [AccountedTask(task, state, *spent) for task in _array_tasks(job)]
    return found


def _array_tasks(job: str) -> list[str]:
    """The tasks in sacct's `12_3`, or `12_[4-6%2]` for tasks that never began."""
    number, _, tasks = job.partition("_")
    if not tasks.startswith("["):
        return [job]
    return [f"{number}_{i}" for i in parse_indices(tasks.strip("[]").partition("%")[0])]
