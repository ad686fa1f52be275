"""submissions.jsonl: who asked for which cells, when, and under which job id."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from gnnhpc.core.errors import InputError
from gnnhpc.records.paths import RunPaths
from gnnhpc.records.provenance import command_line, user
from jobs.folder.locked_files import append_lines, utc_now
from jobs.spec.index_list import format_indices, parse_indices

VERSION = 1
Cluster = Literal["slurm", "local"]
CLUSTERS: tuple[Cluster, ...] = ("slurm", "local")


@dataclass(frozen=True)
class SubmissionRecord:
    """Some cells of one array, asked for at once."""

    cluster: Cluster
    array: str
    indices: str
    """As Slurm writes them: 3,5-7."""
    job_id: str
    """Slurm's job id; on a local cluster the supervisor's process id."""
    at: str
    """UTC, ISO 8601."""
    user: str
    host: str
    started: int | None = None
    """When the local supervisor's process began, in clock ticks: its id alone is used again."""
    command: tuple[str, ...] = ()
    version: int = VERSION

    def index_list(self) -> list[int]:
        return parse_indices(self.indices, "submissions.jsonl")


def record_submission(
    paths: RunPaths, cluster: Cluster, array: str, indices: Sequence[int], job: str
) -> None:
    """Add one line; the caller holds the run's lock."""
    entry = SubmissionRecord(
        cluster=cluster,
        array=array,
        indices=format_indices(indices),
        job_id=job,
        at=utc_now(),
        user=user(),
        host=socket.gethostname(),
        started=process_start_ticks(int(job)) if cluster == "local" else None,
        command=tuple(command_line()),
    )
    append_lines(paths.submissions, [json.dumps(asdict(entry), ensure_ascii=False)])


def read_submissions(paths: RunPaths) -> list[SubmissionRecord]:
    """All submissions, oldest first; raises InputError naming the damaged line."""
    try:
        text = paths.submissions.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    entries = []
    for number, line in enumerate(text.splitlines(), 1):
        where = f"{paths.submissions}:{number}"
        try:
            raw = json.loads(line)
            if raw.get("version") != VERSION:
                raise InputError(where, "version", raw.get("version"), str(VERSION))
            entries.append(SubmissionRecord(**raw | {"command": tuple(raw.get("command", ()))}))
        except (json.JSONDecodeError, TypeError, AttributeError) as error:
            raise InputError(where, None, f"damaged line ({error})", "as written") from None
    return entries


def process_start_ticks(pid: int) -> int | None:
    """When a process of this machine began, in clock ticks since boot; None if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        fields = text.rpartition(")")[2].split()
    except OSError:
        return None
    # Field 22 of proc(5), counted from the state, which is field 3; Z and X are dead.
    return None if fields[0] in "ZX" else int(fields[19])


def supervisor_is_alive(entry: SubmissionRecord) -> bool:
    """Whether the local supervisor of a submission lives; only its own machine can tell.

    A process that asks about itself is not supervising: it has waited, and gone on.
    """
    return (
        entry.cluster == "local"
        and int(entry.job_id) != os.getpid()
        and entry.host == socket.gethostname()
        and entry.started is not None
        and process_start_ticks(int(entry.job_id)) == entry.started
    )
