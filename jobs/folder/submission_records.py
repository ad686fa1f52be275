"""submissions.jsonl: who submitted which cells, when, and under which job id."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal

from gnnhpc.core.errors import InputError
from gnnhpc.core.index_list import format_indices, parse_indices
from gnnhpc.core.process_start import process_start_ticks
from gnnhpc.core.stored_records import build_record
from gnnhpc.records.provenance import command_line, user
from gnnhpc.records.run_facts import SUBMISSIONS_VERSION, read_submission_lines
from gnnhpc.records.run_paths import RunPaths
from jobs.cluster.launch import Launch
from jobs.folder.locked_files import append_lines, utc_now

Cluster = Literal["slurm", "local"]
CLUSTERS: tuple[Cluster, ...] = ("slurm", "local")


@dataclass(frozen=True)
class SubmissionRecord:
    """One line of submissions.jsonl: cells of one array, submitted together."""

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
    """Start of the local supervisor's process, in clock ticks: process ids are used again."""
    command: tuple[str, ...] = ()
    live: bool | None = None
    """Whether the checkout's code was to run; None here and below in records that are older."""
    site: dict[str, Any] | None = None
    """The site's name and settings."""
    offset: int = 0
    """Index of the cell that the job's task 0 runs."""
    manifest: int | None = None
    """Inode of the run's manifest: a copy of the folder has another, and no supervisor."""
    version: int = SUBMISSIONS_VERSION
    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    def index_list(self) -> list[int]:
        return parse_indices(self.indices, "submissions.jsonl")

    @property
    def is_of_this_host(self) -> bool:
        return self.host == socket.gethostname()

    @property
    def place(self) -> str:
        """Of a local one, in words."""
        return "on this machine" if self.is_of_this_host else f"on {self.host}"

    def task(self, index: int) -> str:
        """Slurm's name of the array task that runs the cell with this index."""
        return f"{self.job_id}_{index - self.offset}"


def record_submission(
    paths: RunPaths,
    cluster: Cluster,
    array: str,
    indices: Sequence[int],
    job: str,
    launch: Launch,
    offset: int = 0,
) -> None:
    """Append one line to submissions.jsonl; the caller holds the run's lock."""
    submission = SubmissionRecord(
        cluster=cluster,
        array=array,
        indices=format_indices(indices),
        job_id=job,
        at=utc_now(),
        user=user(),
        host=socket.gethostname(),
        started=process_start_ticks(int(job)) if cluster == "local" else None,
        command=tuple(command_line()),
        live=launch.live,
        site={"name": launch.site_name} | launch.site.settings(),
        offset=offset,
        manifest=paths.manifest.stat().st_ino,
    )
    append_lines(paths.submissions, [json.dumps(asdict(submission), ensure_ascii=False)])


def read_submissions(paths: RunPaths) -> list[SubmissionRecord]:
    """All submissions, oldest first; raises InputError naming the damaged line."""
    submissions = []
    for where, raw in read_submission_lines(paths):
        submission = build_record(SubmissionRecord, raw, where)
        if submission.cluster == "local" and not submission.job_id.isdecimal():
            raise InputError(where, "job_id", repr(submission.job_id), "a process id")
        if submission.manifest not in (None, paths.manifest.stat().st_ino):
            submission = replace(submission, started=None)
        submissions.append(submission)
    return submissions


def first_submission(paths: RunPaths) -> SubmissionRecord | None:
    """Where a run was submitted to at first; None where it does not say, or was planned alone."""
    return next(iter(read_submissions(paths)), None)


def supervisor_is_alive(submission: SubmissionRecord) -> bool:
    """Whether the local supervisor of a submission still runs; False on any other machine.

    False also for this very process: a `submit --wait` that asks has finished supervising.
    """
    return (
        submission.cluster == "local"
        and int(submission.job_id) != os.getpid()
        and submission.is_of_this_host
        and submission.started is not None
        and process_start_ticks(int(submission.job_id)) == submission.started
    )
