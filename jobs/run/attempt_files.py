"""What the files of an attempt and the logs of its job say: process, progress, cause of the end."""

from __future__ import annotations

import contextlib
import re
import socket
import statistics
import time
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from gnnhpc.core.run_paths import AttemptPaths, RunPaths
from gnnhpc.records.attempts import Attempt
from gnnhpc.records.failures import recorded_cause
from gnnhpc.records.result_file import slurm_job, without_cluster
from jobs.run.submission_records import process_start

SILENT_AFTER_S = 120.0
"""Seconds without a written file after which an attempt on another host counts as ended."""
_TAIL_BYTES = 64 * 1024
_MEMORY_LINE = re.compile(
    r"(?:slurmstepd\S*|srun): error: .*(?:memory limit|oom[-_ ]?kill|out of memory).*",
    re.IGNORECASE,
)
"""What Slurm prints into a job's log when it, or the kernel, kills a rank for its memory."""


def read_header(attempt: AttemptPaths) -> dict[str, Any]:
    """The first line of rank 0's records; empty before it is written."""
    with contextlib.suppress(OSError, ValueError), attempt.records(0).open("rb") as stream:
        header = from_json(stream.readline(_TAIL_BYTES))
        return header if isinstance(header, dict) else {}
    return {}


def job_of(attempt: Attempt) -> str | None:
    """Slurm's name of the array task that made an attempt, 1234_5, as far as it is recorded."""
    job = attempt.result.slurm_job if attempt.result else None
    job = job or slurm_job(read_header(attempt.paths).get("slurm"))
    return job and without_cluster(job)


def read_progress(attempt: AttemptPaths) -> tuple[int, float | None]:
    """Training steps that rank 0 has done, and seconds a step (median of its last ten)."""
    last, seconds = -1, []
    for line in lines_from_the_end(attempt.records(0)):
        # The first and the last line may be incomplete.
        with contextlib.suppress(ValueError):
            record = from_json(line)
            if record.get("kind") == "step" and record.get("phase") == "train":
                last = max(last, int(record["step"]))
                seconds.append(float(record["wall_s"]) + float(record.get("data_s") or 0))
        if len(seconds) == 10:
            break
    return last + 1, statistics.median(seconds) if seconds else None


def failure_cause(attempt: Attempt, world_size: int) -> str | None:
    """Why an attempt failed, in one line: as its result says, else its first failing rank."""
    if attempt.damage:
        return attempt.damage.removeprefix(f"{attempt.paths.root}/")
    result = attempt.result
    failure = result.failure if result else recorded_cause(attempt.paths, world_size)
    if failure is None:
        return None
    place = f"rank {failure.rank} on {failure.host}"
    if failure.step is not None:
        place += f", {failure.phase or 'train'} step {failure.step}"
    return f"{place}: {' '.join(failure.error.split())}"


def last_write(attempt: AttemptPaths) -> float:
    """When a file of the attempt was last written, seconds since the epoch."""
    newest = 0.0
    with contextlib.suppress(OSError):
        for path in (attempt.root, *attempt.root.iterdir()):
            newest = max(newest, path.stat().st_mtime)
    return newest


def may_still_run(attempt: Attempt, *, slurm_answers: bool) -> bool:
    """Whether an attempt without a result, which is in no queue, may still run."""
    if attempt.result is not None or attempt.damage:
        return False
    header = read_header(attempt.paths)
    if header.get("host") == socket.gethostname():
        return process_start(header["pid"]) is not None
    if slurm_answers and slurm_job(header.get("slurm")):
        return False
    return time.time() - last_write(attempt.paths) < SILENT_AFTER_S


def job_log(paths: RunPaths, array: str, number: int, job: str) -> Path:
    """The log of one array task, or of one cell of a block, which its script opens."""
    return paths.logs / f"{array}-{number}-{job}.log"


def newest_job_log(paths: RunPaths, array: str, number: int) -> Path | None:
    """The log of the newest job of a cell."""
    logs = list(paths.logs.glob(f"{array}-{number}-*.log"))
    return max(logs, key=lambda path: path.stat().st_mtime, default=None)


def lines_from_the_end(path: Path) -> list[str]:
    """The last lines of a file, the last one first; none for a file that is missing."""
    try:
        with path.open("rb") as stream:
            stream.seek(max(0, stream.seek(0, 2) - _TAIL_BYTES))
            return stream.read().decode(errors="replace").splitlines()[::-1]
    except OSError:
        return []


def memory_cause(lines: list[str]) -> str | None:
    """The line that says that a rank was killed for its memory."""
    return next((found[0] for line in lines if (found := _MEMORY_LINE.search(line))), None)


def script_error(lines: list[str]) -> str | None:
    """The error with which a job's script ended: the last line of its log."""
    last = lines[0] if lines else ""
    return last.removeprefix("error: ") if last.startswith("error: ") else None
