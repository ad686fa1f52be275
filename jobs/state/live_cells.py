"""Cells that run or wait, or that may: by the queue, the accounting and their own files."""

from __future__ import annotations

import socket
import time
from dataclasses import replace
from datetime import datetime

from gnnhpc.core.process_start import process_start_ticks
from gnnhpc.records.failures import recorded_cause
from gnnhpc.records.run_paths import AttemptPaths
from jobs.cluster.slurm_queue import QueueAnswer, QueuedJob
from jobs.folder.attempt_files import (
    last_write_time,
    read_attempt_process,
    read_attempt_progress,
)
from jobs.folder.submission_records import SubmissionRecord
from jobs.state.states import UNKNOWN, CellStatus, JobLookup

_SILENT_AFTER_S = 120.0
_MAY_COME_BACK = ("NODE_FAIL", "BOOT_FAIL", "PREEMPTED", "REQUEUED", "REVOKED")
"""Ends after which Slurm may queue the job again."""
WAITING_IN_SLURM = (
    "PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT",
    "CONFIGURING",
)  # fmt: skip


def live_status(
    cell: CellStatus, attempt: AttemptPaths | None, lookup: JobLookup, ended: bool
) -> CellStatus | None:
    """The status of a cell that is queued or supervised; None for others.

    `attempt` is the newest, if it has no result yet; `ended`: a result is newer than the
    submission.
    """
    key = (cell.array, cell.index)
    job, submission = lookup.queued.get(key), lookup.submitted.get(key)
    if job is not None and (queued := _queued_status(cell, attempt, job, lookup, ended)):
        return queued
    if lookup.turns.get(key) == "over":
        return None
    if ended or submission is None:
        return None
    if key in lookup.supervised:
        return _supervised_status(cell, attempt, submission)
    if (
        submission.cluster == "slurm"
        and lookup.answer.answered
        and lookup.answer.kept
        and epoch_seconds(submission.at) > lookup.answer.at - 1
    ):
        # The kept answer of the queue is older than this submission.
        task = lookup.submitted_task(key)
        return replace(cell, state="pending", detail="just submitted", job=task)
    return None


def _supervised_status(
    cell: CellStatus, attempt: AttemptPaths | None, submission: SubmissionRecord
) -> CellStatus | None:
    """None for a cell whose ranks have ended without a result."""
    if attempt is None or last_write_time(attempt) < epoch_seconds(submission.at):
        return replace(cell, state="pending", detail="waits for its turn")
    never_began = read_attempt_process(attempt) is None and recorded_cause(attempt, 1) is not None
    over = never_began or not may_still_run(attempt, slurm_answers=True)
    return None if over else running_status(cell, attempt)


def _queued_status(
    cell: CellStatus, attempt: AttemptPaths | None, job: QueuedJob, lookup: JobLookup, ended: bool
) -> CellStatus | None:
    """None for a cell that its job has run already."""
    key = (cell.array, cell.index)
    index = lookup.blocks.index(job.array, key)
    block = "" if job.array == cell.array else f"block {index} of {job.array}"
    cell = replace(cell, job=job.task(index))
    turn = lookup.turns.get(key)
    if turn == "over":
        return None
    if job.state in WAITING_IN_SLURM:
        detail = f"waits in {block}: {job.reason}" if block else job.reason
        return replace(cell, state="pending", detail=detail, reason=job.reason)
    if turn == "waits":
        return replace(cell, state="pending", detail=f"waits for its turn in {block}")
    if turn == "runs" or (turn is None and not ended):
        return running_status(cell, attempt)
    return None


def unknown_status(
    cell: CellStatus, attempt: AttemptPaths | None, job: str | None, lookup: JobLookup
) -> CellStatus | None:
    """The status of a cell of which neither its files nor the queue say whether it will run.

    None where its job has ended, or it had none in Slurm; `job` is the newest that is known, and
    `attempt` the newest, if it has no result yet.
    """
    key = (cell.array, cell.index)
    submission = lookup.submitted.get(key)
    if submission is not None and submission.cluster == "local":
        return _elsewhere_status(cell, attempt, submission, lookup)
    if lookup.turns.get(key) == "over":
        return None
    cell = replace(cell, job=job)
    if lookup.turns.get(key) == "waits":
        return replace(cell, state="pending", detail="waits for its turn in its block")
    if lookup.silent:
        return _unasked_status(cell, attempt, lookup.answer)
    if lookup.answer.accounted_as_live(job):
        word = lookup.answer.accounted[job or ""]
        return replace(cell, state=UNKNOWN, detail=f"squeue does not list {job}, sacct: {word}")
    return None


def _elsewhere_status(
    cell: CellStatus, attempt: AttemptPaths | None, submission: SubmissionRecord, lookup: JobLookup
) -> CellStatus | None:
    """Of a cell whose turn another host's supervisor may not have come to yet.

    Whether it still runs cannot be seen from here, but for what its ranks write.
    """
    heard = lookup.heard_elsewhere.get(submission.job_id)
    if attempt is not None or heard is None or time.time() - heard > _SILENT_AFTER_S:
        return None
    detail = f"process {submission.job_id} on {submission.host} may come to it: ask there"
    return replace(cell, state=UNKNOWN, detail=detail)


def _unasked_status(
    cell: CellStatus, attempt: AttemptPaths | None, answer: QueueAnswer
) -> CellStatus | None:
    """Where squeue gave no answer: the accounting's word, else what an attempt has just written."""
    word = answer.accounted.get(cell.job or "")
    if word in WAITING_IN_SLURM:
        return replace(cell, state="pending", detail=f"sacct: {word}")
    if answer.accounted_as_live(cell.job):
        return running_status(cell, attempt)
    if word is not None and word not in _MAY_COME_BACK:
        return None
    if attempt is not None and may_still_run(attempt, slurm_answers=False):
        return running_status(cell, attempt)
    return replace(cell, state=UNKNOWN, detail=f"Slurm does not say: {answer.error}")


def running_status(cell: CellStatus, attempt: AttemptPaths | None) -> CellStatus:
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


def may_still_run(attempt: AttemptPaths, *, slurm_answers: bool) -> bool:
    """Whether an attempt that is in no queue may still be running."""
    process = read_attempt_process(attempt)
    if process is not None and process.host == socket.gethostname():
        return process_start_ticks(process.pid) is not None
    if process is not None and process.job and slurm_answers:
        return False
    return time.time() - last_write_time(attempt) < _SILENT_AFTER_S


def epoch_seconds(iso: str) -> float:
    try:
        return datetime.fromisoformat(iso).timestamp()
    except ValueError:
        return 0.0
