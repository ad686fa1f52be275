"""What Slurm says about jobs: squeue about those in the queue, sacct about all that it knows.

An answer is kept for ten seconds in the user's cache folder, so that several `status` at once, or
one a second in a loop, cost the scheduler one query.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from gnnhpc.core.errors import InputError
from gnnhpc.core.slurm_commands import run_slurm
from jobs.slurm.job_array import array_of_job, parse_indices

QUERY_INTERVAL_S = 10.0
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
_NOT_CONFIGURED = re.compile(r"configuration (source|file)", re.IGNORECASE)
"""What squeue prints where its package is installed and no cluster is configured."""
_WAITS_S = (0.5, 2.0)
"""Pauses before squeue is called again."""
_PATIENCE_S = 20.0
"""Time for all calls of squeue together, and half of it for sacct."""
_SEPARATOR = "\x1f"


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
        """The name of the array."""
        return array_of_job(self.name)[0]

    @property
    def first_task(self) -> int:
        return array_of_job(self.name)[1]

    def numbers(self) -> list[int]:
        """Indices of the cells, or numbers of the blocks; empty where they cannot be read."""
        try:
            tasks = parse_indices(self.task_ids.partition("%")[0]) if self.task_ids else []
        except InputError:
            return []
        return [task + self.first_task for task in tasks]

    def task(self, number: int) -> str:
        """Slurm's name of the array task with this number: 1234_5."""
        return f"{self.job_id}_{number - self.first_task}"

    @property
    def is_unreadable(self) -> bool:
        """Whether its tasks are listed in an unknown form, or cut short."""
        return bool(self.task_ids) and not self.numbers()

    @property
    def has_ended(self) -> bool:
        """Whether it has ended; Slurm lists a job for some minutes more."""
        return self.state in ENDED_STATES


@dataclass(frozen=True)
class QueueAnswer:
    """Slurm's answer at time `at` (seconds since the epoch)."""

    at: float
    jobs: tuple[QueuedJob, ...] = ()
    accounted: dict[str, str] = field(default_factory=dict)
    """Array task -> its state, such as TIMEOUT, of jobs that sacct has or that ended just now."""
    peak_memory: dict[str, str] = field(default_factory=dict)
    """Array task -> the most memory that a rank used, as sacct writes it, such as 1500000K."""
    error: str | None = None
    """Why squeue gave no answer; None if it did."""
    kept: bool = False
    """Whether an earlier command asked, so that jobs may have been submitted since."""

    @property
    def answered(self) -> bool:
        return self.error is None

    def accounts_as_live(self, task: str | None) -> bool:
        """Whether the accounting has an array task that has not ended."""
        return self.accounted.get(task or "", "COMPLETED") not in ENDED_STATES


def query_queue(
    place: Path, users: Iterable[str], jobs: Mapping[str, str | None], *, fresh: bool = False
) -> QueueAnswer:
    """The queued jobs of these users, and what sacct says of `jobs`.

    `jobs` has the arrays of job ids, None where an array is not known: under an id of ours sacct
    may have somebody else's job. The last answer for a place, a run folder or a folder of runs, is
    returned for ten seconds, unless `fresh`.
    """
    names = sorted(set(users))
    if shutil.which("squeue") is None:
        return QueueAnswer(time.time(), error=NO_SLURM)
    try:
        from filelock import FileLock, Timeout

        path = answer_file(place, names)
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock", timeout=5):
            answer = None if fresh else _kept_answer(path)
            if answer is None:
                answer = _ask_slurm(names, jobs)
                with contextlib.suppress(OSError):
                    path.write_text(json.dumps(asdict(answer)), encoding="utf-8")
            return answer
    except (OSError, NotImplementedError, Timeout):
        # Keeping an answer spares the scheduler; without it Slurm is asked each time.
        return _ask_slurm(names, jobs)


def answer_file(place: Path, users: Iterable[str]) -> Path:
    """The file that keeps the last answer about a run or a folder of runs."""
    from gnnhpc.data.data_files import cache_root

    key = json.dumps([str(place), sorted(set(users)), os.environ.get("SLURM_CONF", "")])
    return cache_root() / f"slurm-{hashlib.sha256(key.encode()).hexdigest()[:12]}.json"


def forget_answers() -> None:
    """Remove all kept answers, since jobs have just changed."""
    from gnnhpc.data.data_files import cache_root

    for path in cache_root().glob("slurm-*.json"):
        path.unlink(missing_ok=True)


def _kept_answer(path: Path) -> QueueAnswer | None:
    """The kept answer if it is at most ten seconds old."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        raw = json.loads(path.read_text(encoding="utf-8"))
        if 0 <= time.time() - raw["at"] < QUERY_INTERVAL_S:
            jobs = tuple(QueuedJob(**job) for job in raw["jobs"])
            return QueueAnswer(**raw | {"jobs": jobs, "kept": True})
    return None


def _ask_slurm(users: list[str], arrays: Mapping[str, str | None]) -> QueueAnswer:
    now = time.time()
    try:
        listed, error = ask_squeue(users), None
    except SlurmSilentError as silent:
        listed, error = (), str(silent)
    accounted, peak_memory = _ask_sacct(arrays)
    for job in listed:
        # The accounting records an end a moment after the queue, but with more of its cause.
        if job.has_ended and arrays.get(job.job_id, "") in (None, job.array):
            for task in map(job.task, job.numbers()):
                if accounted.get(task, "PENDING") not in ENDED_STATES:
                    accounted[task] = job.state
    queued = tuple(job for job in listed if not job.has_ended)
    return QueueAnswer(now, queued, accounted, peak_memory, error)


class SlurmSilentError(Exception):
    """squeue gave no answer; the message says why in one line."""


def ask_squeue(users: Iterable[str]) -> tuple[QueuedJob, ...]:
    """The jobs of these users that are queued or have just ended, also in hidden partitions.

    Raises SlurmSilentError after several tries, and for an answer that cannot be read.
    """
    form = _SEPARATOR.join(("%i", "%T", "%r", "%j", "%o", "%k"))
    which = ("--all", "--states=all", f"--user={','.join(users)}")
    command = ("squeue", *which, "--noheader", f"--format={form}")
    deadline = time.monotonic() + _PATIENCE_S
    for wait in (*_WAITS_S, None):
        try:
            text = _run(*command, timeout=max(1.0, (deadline - time.monotonic()) / 2))
        except (OSError, subprocess.SubprocessError) as error:
            if _NOT_CONFIGURED.search(str(getattr(error, "stderr", ""))):
                raise SlurmSilentError(NO_SLURM) from None
            if wait is None or time.monotonic() + wait > deadline:
                raise SlurmSilentError(_error_line(error)) from None
            time.sleep(wait)
        else:
            return tuple(job for line in text.split("\n") if (job := parse_queue_line(line)))
    raise AssertionError("the last try returns or raises")


def parse_queue_line(line: str) -> QueuedJob | None:
    """None for a line that is no job, such as a banner.

    Raises SlurmSilentError for a job that cannot be read: left out, it would be run twice.
    """
    parts = line.split(_SEPARATOR)
    if len(parts) != 6:
        if line[:1].isdecimal():
            raise SlurmSilentError(f"squeue answered {line[:60]!r}, which cannot be read")
        return None
    job_id, _, tasks = parts[0].partition("_")
    state, reason, name, script, comment = parts[1:]
    reason = "" if reason == "None" else reason
    return QueuedJob(job_id, tasks.strip("[]"), state, reason, name, script, comment)


def _ask_sacct(arrays: Mapping[str, str | None]) -> tuple[dict[str, str], dict[str, str]]:
    if not arrays or shutil.which("sacct") is None:
        return {}, {}
    command = (
        "sacct",
        "--noheader",
        "--parsable2",
        f"--delimiter={_SEPARATOR}",
        "--format=JobID,State,JobName,MaxRSS",
        f"--jobs={','.join(sorted(arrays))}",
    )
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return parse_sacct(_run(*command, timeout=_PATIENCE_S / 2), arrays)
    return {}, {}


def parse_sacct(
    text: str, arrays: Mapping[str, str | None]
) -> tuple[dict[str, str], dict[str, str]]:
    """Array task -> state, and array task -> the most memory that a rank of it used.

    A job is OUT_OF_MEMORY if any of its steps is. A job with the name of another array is somebody
    else's job under an id of ours.
    """
    found: dict[str, str] = {}
    memory: dict[str, str] = {}
    foreign: set[str] = set()
    for line in text.splitlines():
        name, state, job_name, used = [*line.split(_SEPARATOR), "", "", ""][:4]
        job, _, step = name.partition(".")
        number = job.partition("_")[0]
        array = arrays.get(number)
        if not step and array is not None and array_of_job(job_name)[0] != array:
            foreign.add(number)
        if number in foreign:
            continue
        word = state.split(" ")[0]
        for task in _array_tasks(job):
            if word == "OUT_OF_MEMORY" or (not step and found.get(task) != "OUT_OF_MEMORY"):
                found[task] = word
            if _bytes(used) > _bytes(memory.get(task, "")):
                memory[task] = used
    return found, memory


def _bytes(text: str) -> float:
    """Slurm's 1500000K or 1.5G; 0 for nothing."""
    match = re.match(r"^([\d.]+)([KMGT]?)$", text)
    return float(match[1]) * 1024.0 ** " KMGT".index(match[2] or " ") if match else 0.0


def _array_tasks(job: str) -> list[str]:
    """The tasks in sacct's `12_3`, or `12_[4-6%2]` for tasks that never began."""
    number, _, tasks = job.partition("_")
    if not tasks.startswith("["):
        return [job]
    with contextlib.suppress(InputError):
        return [f"{number}_{i}" for i in parse_indices(tasks.strip("[]").partition("%")[0])]
    return []


def _run(*command: str, timeout: float) -> str:
    # A user's own defaults, such as SQUEUE_STATES, would hide jobs.
    without, given = ("SQUEUE_", "SACCT_"), {"SLURM_BITSTR_LEN": "0"}
    return run_slurm(*command, timeout_s=timeout, without=without, given=given)


def _error_line(error: Exception) -> str:
    if isinstance(error, subprocess.TimeoutExpired):
        return f"squeue gave no answer within {error.timeout:.0f} s"
    text = getattr(error, "stderr", None) or str(error)
    lines = [line for line in str(text).splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__
