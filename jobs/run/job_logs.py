"""The logs that jobs write: their places, and the causes that their scripts and Slurm print."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from gnnhpc.core.run_paths import RunPaths

_MEMORY_LINE = re.compile(
    r"(?:slurmstepd\S*|srun): error: .*(?:memory limit|oom[-_ ]?kill|out of memory).*",
    re.IGNORECASE,
)
"""What Slurm prints into a job's log when it, or the kernel, kills a rank for its memory."""
_TAIL_BYTES = 64 * 1024


def job_log(paths: RunPaths, array: str, number: int, job: str) -> Path:
    """The log of one array task, or of one cell of a block, which its script opens."""
    return paths.logs / f"{array}-{number}-{job}.log"


def newest_job_log(paths: RunPaths, array: str, number: int) -> Path | None:
    """The log of the newest job of a cell."""
    logs = list(paths.logs.glob(f"{array}-{number}-*.log"))
    return max(logs, key=lambda path: path.stat().st_mtime, default=None)


def lines_from_the_end(log: Path) -> list[str]:
    """The last lines of a log, the last one first; none for a log that is missing."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, stream.seek(0, 2) - _TAIL_BYTES))
            return stream.read().decode(errors="replace").splitlines()[::-1]
    except OSError:
        return []


def memory_cause(lines: Iterable[str]) -> str | None:
    """The line that says that a rank was killed for its memory."""
    return next((found[0] for line in lines if (found := _MEMORY_LINE.search(line))), None)


def script_error(lines: list[str]) -> str | None:
    """The error with which a job's script ended: the last line of its log."""
    last = lines[0] if lines else ""
    return last.removeprefix("error: ") if last.startswith("error: ") else None
