"""The state of one cell, from its folder, Slurm's queue and the local supervisor."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from gnnhpc.records.paths import AttemptPaths
from jobs.cluster.slurm_queue import QueueAnswer, QueuedJob
from jobs.folder.attempt_files import (
    AttemptProcess,
    AttemptResult,
    ManifestEntry,
    last_write_time,
    read_attempt_process,
    read_attempt_progress,
    read_failure_cause,
)
from jobs.folder.submission_records import SubmissionRecord, process_start_ticks

STATES = (
    "done",
    "flagged",
    "running",
    "pending",
    "failed",
    "timed out",
    "preempted",
    "out of memory",
    "cancelled",
    "interrupted",
    "lost",
    "missing",
)
"""`flagged`: done, but an audit found it invalid. `lost`: ended without result or failure.
`missing`: never tried."""
LIVE = ("running", "pending")
UNFINISHED = tuple(state for state in STATES if state not in ("done", "flagged", *LIVE))
FAILED = tuple(state for state in UNFINISHED if state != "missing")

_SILENT_AFTER_S = 120.0
_STATE_OF_SLURM_END = {
    "TIMEOUT": "timed out",
    "DEADLINE": "timed out",
    "PREEMPTED": "preempted",
    "OUT_OF_MEMORY": "out of memory",
    "CANCELLED": "cancelled",
    "NODE_FAIL": "lost",
    "BOOT_FAIL": "lost",
}
_WAITING_IN_SLURM = ("PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "CONFIGURING")


@dataclass(frozen=True)
class CellStatus:
    """One cell as `status --cells` shows it."""

    cell: str
    array: str
    index: int
    state: str
    attempts: int = 0
    attempt: int | None = None
    """The attempt that the state is taken from."""
    step: int | None = None
    steps: int | None = None
    step_s: float | None = None
    eta_s: float | None = None
    detail: str | None = None
    """Slurm's reason, or the first failing rank's one-line cause."""
    flags: tuple[str, ...] = ()
    job: str | None = None


@dataclass
class JobLookup:
    """What Slurm and the submission records say of a run's jobs; keys are (array, index)."""

    answer: QueueAnswer
    """Of the queue, and of sacct for ended jobs."""
    queued: dict[tuple[str, int], QueuedJob] = field(default_factory=dict)
    supervised: dict[tuple[str, int], SubmissionRecord] = field(default_factory=dict)
    """Submissions to a local supervisor that still runs."""
    submitted: dict[tuple[str, int], SubmissionRecord] = field(default_factory=dict)
    """The newest submission of each cell."""


def cell_status(
    entry: ManifestEntry,
    attempts: Sequence[AttemptPaths],
    result: AttemptResult | None,
    lookup: JobLookup,
) -> CellStatus:
    """The status of one cell.

    `attempts` are the cell's, newest first; `result` is the newest valid one, else the newest
    attempt's.
    """
    newest = attempts[0] if attempts else None
    cell = CellStatus(
        cell=entry.id,
        array=entry.array,
        index=entry.index,
        state="missing",
        attempts=len(attempts),
        attempt=newest.number if newest else None,
        steps=entry.train_steps,
    )
    key = (entry.array, entry.index)
    # A result newer than the submission: its job has ended, even if the queue lists it still.
    submission = lookup.submitted.get(key)
    ended = result is not None and submission is not None and _after(result.ended_at, submission.at)
    live = _live_status(cell, newest if result is None else None, lookup, ended)
    if live is not None:
        return live
    if result is None or result.status != "done":
        return _ended_status(entry, cell, newest, result, lookup)
    later = None if result.attempt == cell.attempt else f"attempt {cell.attempt} is not valid"
    return replace(
        cell,
        state="done" if result.valid else "flagged",
        attempt=result.attempt,
        step=entry.train_steps,
        detail=later or (", ".join(result.flags) or None),
        flags=result.flags,
    )


def _live_status(
    cell: CellStatus, attempt: AttemptPaths | None, lookup: JobLookup, ended: bool
) -> CellStatus | None:
    """The status of a cell that is queued or supervised; None for others.

    `attempt` is the newest, if it has no result yet; `ended`: a result is newer than the
    submission.
    """
    key = (cell.array, cell.index)
    job, submission = lookup.queued.get(key), lookup.submitted.get(key)
    if job is not None:
        cell = replace(cell, job=f"{job.job_id}_{cell.index}")
        if job.state in _WAITING_IN_SLURM:
            return replace(cell, state="pending", detail=job.reason)
        if not ended:
            return _running_status(cell, attempt)
    if ended or submission is None:
        return None
    if key in lookup.supervised:
        waiting = replace(cell, state="pending", detail="waits for its turn")
        return waiting if attempt is None else _running_status(cell, attempt)
    if (
        submission.cluster == "slurm"
        and lookup.answer.answered
        and _epoch_seconds(submission.at) > lookup.answer.at - 1
    ):
        # The kept answer of the queue is older than this submission.
        name = f"{submission.job_id}_{cell.index}"
        return replace(cell, state="pending", detail="just submitted", job=name)
    return None


def _running_status(cell: CellStatus, attempt: AttemptPaths | None) -> CellStatus:
    """`running`, with progress; `attempt` is None until the worker has created it."""
    if attempt is None:
        return replace(cell, state="running", detail="starting")
    progress = read_attempt_progress(attempt)
    left = max(0, (cell.steps or 0) - progress.step)
    return replace(
        cell,
        state="running",
        step=progress.step,
        step_s=progress.step_s,
        eta_s=None if progress.step_s is None else left * progress.step_s,
        detail=None if progress.step else "starting",
    )


def _ended_status(
    entry: ManifestEntry,
    cell: CellStatus,
    attempt: AttemptPaths | None,
    result: AttemptResult | None,
    lookup: JobLookup,
) -> CellStatus:
    """The status of a cell that is neither queued nor done: failed, lost, missing and so on."""
    submission = lookup.submitted.get((entry.array, entry.index))
    slurm = submission if submission is not None and submission.cluster == "slurm" else None
    process = read_attempt_process(attempt) if attempt else None
    job = _last_job(slurm, process, entry.index)
    slurm_state = lookup.answer.ended.get(job or "", "")
    cell = replace(cell, job=job)
    if attempt is None:
        if not slurm_state:
            return cell
        detail = f"Slurm says {slurm_state}, and no worker began: see logs"
        return replace(cell, state=_STATE_OF_SLURM_END.get(slurm_state, "failed"), detail=detail)
    never_began = process is None and submission is not None and _is_local_to_this_host(submission)
    unknown_end = result is None and not slurm_state and not never_began
    if unknown_end and _may_still_run(attempt, process, lookup.answer.answered):
        return _running_status(cell, attempt)
    progress = read_attempt_progress(attempt)
    cause = result.cause if result else read_failure_cause(attempt, entry.world_size)
    if result is not None:
        state = "interrupted" if result.status == "interrupted" else "failed"
    else:
        state = "failed" if cause else "lost"
    return replace(
        cell,
        state=_STATE_OF_SLURM_END.get(slurm_state, state),
        step=progress.step,
        step_s=progress.step_s,
        detail=cause or f"no result; Slurm says {slurm_state or 'nothing'}",
    )


def _last_job(
    slurm: SubmissionRecord | None, process: AttemptProcess | None, index: int
) -> str | None:
    """The newer of the submitted job and the job of the newest attempt."""
    submitted = f"{slurm.job_id}_{index}" if slurm else None
    ran = process.job if process else None
    return max((job for job in (submitted, ran) if job), key=_job_number, default=None)


def _is_local_to_this_host(submission: SubmissionRecord) -> bool:
    """Whether it is a local submission of this host; without its supervisor no cell begins."""
    return submission.cluster == "local" and submission.host == socket.gethostname()


def _may_still_run(
    attempt: AttemptPaths, process: AttemptProcess | None, slurm_answers: bool
) -> bool:
    """Whether an attempt that is in no queue may still be running."""
    if process is not None and process.host == socket.gethostname():
        return process_start_ticks(process.pid) is not None
    if process is not None and process.job and slurm_answers:
        return False
    return time.time() - last_write_time(attempt) < _SILENT_AFTER_S


def _job_number(job: str) -> int:
    head = job.partition("_")[0]
    return int(head) if head.isdigit() else 0


def _epoch_seconds(iso: str) -> float:
    try:
        return datetime.fromisoformat(iso).timestamp()
    except ValueError:
        return 0.0


def _after(iso: str, other: str) -> bool:
    return _epoch_seconds(iso) >= _epoch_seconds(other)
