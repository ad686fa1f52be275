"""Looks up a run's jobs in Slurm: squeue for live jobs, sacct for ended ones.

An answer is kept for ten seconds in the user's cache folder, so that several `status` at once, or
one a second in a loop, cost the scheduler one query.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from gnnhpc.core.errors import InputError
from gnnhpc.core.index_list import parse_indices

QUERY_INTERVAL_S = 10.0
_TIMEOUT_S = 15
_SEPARATOR = "\x1f"


@dataclass(frozen=True)
class QueuedJob:
    """One array task in the queue, or a range of pending ones."""

    job_id: str
    indices: str
    """As Slurm writes them; empty if the job is no array."""
    state: str
    reason: str
    name: str
    script: str
    """Path of the batch script as submitted."""
    comment: str

    def index_list(self) -> list[int]:
        try:
            return parse_indices(self.indices.partition("%")[0]) if self.indices else []
        except InputError:
            return []


@dataclass(frozen=True)
class QueueAnswer:
    """Slurm's answer at time `at` (seconds since the epoch); `error` if there was none."""

    at: float
    jobs: tuple[QueuedJob, ...] = ()
    ended: dict[str, str] = field(default_factory=dict)
    """Array task -> its final state in Slurm, such as TIMEOUT."""
    error: str | None = None

    @property
    def answered(self) -> bool:
        return self.error is None


def query_queue(run: Path, users: Iterable[str], ended: Iterable[str] = ()) -> QueueAnswer:
    """The queued jobs of these users, and the final states of the jobs `ended` where sacct exists.

    A run's last answer is returned for ten seconds, whichever jobs `ended` names meanwhile.
    """
    from gnnhpc.data.roots import cache_root

    names, job_ids = sorted(set(users)), sorted(set(ended))
    if shutil.which("squeue") is None:
        return QueueAnswer(time.time(), error="no Slurm here")
    key = json.dumps([str(run), names, os.environ.get("SLURM_CONF", "")])
    path = cache_root() / f"slurm-{hashlib.sha256(key.encode()).hexdigest()[:12]}.json"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        stream = path.open("a+", encoding="utf-8")
    except OSError:
        return _ask_slurm(names, job_ids)
    with stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        stream.seek(0)
        kept = _fresh_answer(stream.read())
        if kept is not None:
            return kept
        answer = _ask_slurm(names, job_ids)
        stream.seek(0)
        stream.truncate()
        json.dump(asdict(answer), stream)
        return answer


def _fresh_answer(text: str) -> QueueAnswer | None:
    """The kept answer if it is at most ten seconds old."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        raw = json.loads(text)
        if 0 <= time.time() - raw["at"] < QUERY_INTERVAL_S:
            return QueueAnswer(**raw | {"jobs": tuple(QueuedJob(**job) for job in raw["jobs"])})
    return None


def _ask_slurm(users: list[str], job_ids: list[str]) -> QueueAnswer:
    form = _SEPARATOR.join(("%i", "%T", "%r", "%j", "%o", "%k"))
    now = time.time()
    try:
        text = _run("squeue", "--noheader", f"--user={','.join(users)}", f"--format={form}")
    except (OSError, subprocess.SubprocessError) as error:
        return QueueAnswer(now, error=_error_line(error))
    jobs = tuple(job for line in text.splitlines() if (job := _parse_queue_line(line)))
    ended: dict[str, str] = {}
    if job_ids and shutil.which("sacct") is not None:
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            form = "--format=JobID,State"
            ended = parse_sacct(
                _run("sacct", "--noheader", "--parsable2", form, f"--jobs={','.join(job_ids)}")
            )
    return QueueAnswer(now, jobs, ended)


def _parse_queue_line(line: str) -> QueuedJob | None:
    parts = line.split(_SEPARATOR)
    if len(parts) != 6:
        return None
    job_id, _, indices = parts[0].partition("_")
    return QueuedJob(job_id, indices.strip("[]"), *parts[1:])


def parse_sacct(text: str) -> dict[str, str]:
    """Array task -> state; a job is OUT_OF_MEMORY if any of its steps is."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, _, state = line.partition("|")
        job, _, step = name.partition(".")
        word = state.split(" ")[0]
        for task in _array_tasks(job):
            if word == "OUT_OF_MEMORY" or (not step and found.get(task) != "OUT_OF_MEMORY"):
                found[task] = word
    return found


def _array_tasks(job: str) -> list[str]:
    """The tasks that sacct names: `12_3`, or `12_[4-6%2]` for tasks that never began."""
    number, _, indices = job.partition("_")
    if not indices.startswith("["):
        return [job]
    with contextlib.suppress(InputError):
        return [f"{number}_{i}" for i in parse_indices(indices.strip("[]").partition("%")[0])]
    return []


def _run(*command: str) -> str:
    done = subprocess.run(
        command,
        env=os.environ | {"SLURM_BITSTR_LEN": "0"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_TIMEOUT_S,
        check=True,
    )
    return done.stdout


def _error_line(error: Exception) -> str:
    text = getattr(error, "stderr", None) or str(error)
    lines = [line for line in str(text).splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__
