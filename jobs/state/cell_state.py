"""The state of one cell, from its folder, Slurm's queue and the local supervisor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gnnhpc.records.run_paths import AttemptPaths
from gnnhpc.records.slurm_job import without_cluster
from jobs.folder.attempt_files import (
    AttemptResult,
    ManifestEntry,
    read_attempt_job,
    read_attempt_process,
    read_attempt_progress,
    read_failure_cause,
)
from jobs.folder.run_blocks import Key
from jobs.folder.submission_records import SubmissionRecord
from jobs.state.live_cells import (
    epoch_seconds,
    live_status,
    may_still_run,
    running_status,
    unknown_status,
)
from jobs.state.states import CellStatus, JobLookup

_STATE_OF_SLURM_END = {
    "TIMEOUT": "timed out",
    "DEADLINE": "timed out",
    "PREEMPTED": "preempted",
    "OUT_OF_MEMORY": "out of memory",
    "CANCELLED": "cancelled",
    "NODE_FAIL": "lost",
    "BOOT_FAIL": "lost",
}
_STOPPED = "stopped by a signal; rerun goes on from its checkpoint"
_GOES_ON = "interrupted, and its job has not ended"


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
    submission = lookup.submitted.get(key)
    ended = submission is not None and _is_of_the_newest_job(result, key, submission, lookup)
    without_result = newest
    if newest is not None and result is not None:
        # An older one's may count.
        has_result = result.attempt == newest.number or newest.result.exists()
        without_result = None if has_result else newest
    live = live_status(cell, without_result, lookup, ended)
    if live is not None:
        saved = live.state == "running" and result is not None and result.status == "interrupted"
        return replace(live, detail=_GOES_ON) if saved else live
    if result is None or not result.valid:
        job = _last_job(lookup.submitted_task(key), newest)
        tells = result is not None and result.status != "interrupted"
        tells = tells and (ended or submission is None)
        unknown = None if tells else unknown_status(cell, without_result, job, lookup)
        if unknown is not None:
            return unknown
    if result is None or result.status != "done":
        return _ended_status(entry, cell, newest, result, job, lookup)
    later = None if result.attempt == cell.attempt else f"attempt {cell.attempt} is not valid"
    twice = None
    if result.twice is not None:
        twice = f"attempt {result.twice} of the same job is valid too, the newer counts"
    return replace(
        cell,
        state="done" if result.valid else "flagged",
        attempt=result.attempt,
        step=entry.train_steps,
        detail=later or (", ".join(result.flags) or None) or twice,
        flags=result.flags,
    )


def _is_of_the_newest_job(
    result: AttemptResult | None, key: Key, submission: SubmissionRecord, lookup: JobLookup
) -> bool:
    """Whether the newest job has this result, and so has ended, even if the queue lists it still.

    As the result says, where the queue has a job: the clocks of nodes differ. That of interrupted
    ranks is written before they ask for another start.
    """
    if result is None:
        return False
    queued = lookup.queued_task(key)
    if queued is not None and result.status == "interrupted":
        return False
    if queued is not None and result.job is not None:
        return without_cluster(result.job) == queued
    return _after(result.ended_at, submission.at)


def _ended_status(
    entry: ManifestEntry,
    cell: CellStatus,
    attempt: AttemptPaths | None,
    result: AttemptResult | None,
    job: str | None,
    lookup: JobLookup,
) -> CellStatus:
    """The status of a cell that is neither queued nor done: failed, lost, missing and so on."""
    submission = lookup.submitted.get((entry.array, entry.index))
    process = read_attempt_process(attempt) if attempt else None
    slurm_state = lookup.answer.accounted.get(job or "", "")
    cell = replace(cell, job=job)
    if attempt is None:
        if not slurm_state:
            return cell
        detail = f"Slurm says {slurm_state}, and no worker began: see logs"
        return replace(cell, state=_STATE_OF_SLURM_END.get(slurm_state, "failed"), detail=detail)
    cause = result.cause if result else read_failure_cause(attempt, entry.world_size)
    # The job's script records a failure where it could not start the ranks.
    never_began = process is None and cause is not None
    unknown_end = result is None and not slurm_state and not never_began
    if unknown_end and may_still_run(attempt, slurm_answers=lookup.answer.answered):
        return running_status(cell, attempt)
    progress = read_attempt_progress(attempt)
    if result is not None and result.status == "interrupted":
        state, cause = "interrupted", cause or _STOPPED
    elif result is not None:
        state = "failed"
    else:
        state = "failed" if cause else "lost"
    in_block = submission is not None and submission.array != entry.array
    if not (in_block and state == "failed" and slurm_state != "OUT_OF_MEMORY"):
        # A block's end is not that of a cell that had failed before.
        state = _STATE_OF_SLURM_END.get(slurm_state, state)
    return replace(
        cell,
        state=state,
        step=progress.step,
        step_s=progress.step_s,
        detail=cause or _without_result(submission, job, slurm_state),
    )


def _without_result(submission: SubmissionRecord | None, job: str | None, slurm_state: str) -> str:
    if job is None and submission is not None and submission.cluster == "local":
        return f"no result of its ranks {submission.place}"
    return f"no result; Slurm says {slurm_state or 'nothing'}"


def _last_job(submitted: str | None, attempt: AttemptPaths | None) -> str | None:
    """The newer of the job that was submitted to Slurm and the job of the newest attempt."""
    ran = read_attempt_job(attempt) if attempt else None
    return max((job for job in (submitted, ran) if job), key=job_number, default=None)


def job_number(job: str) -> int:
    """The number in `17_3` or `17` that Slurm counts up; 0 for what is none of its jobs."""
    head = job.partition("_")[0]
    return int(head) if head.isdigit() else 0


def _after(iso: str, other: str) -> bool:
    return epoch_seconds(iso) >= epoch_seconds(other)
