"""The state of one cell, from its folder, the queue and the local supervisor."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from gnnhpc.records.paths import AttemptPaths
from jobs.cluster import slurm_queue as queue
from jobs.cluster.slurm_queue import Answer
from jobs.folder import attempt_files as attempts
from jobs.folder import submission_records as submissions
from jobs.folder.attempt_files import Outcome, Place
from jobs.folder.submission_records import Entry

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
"""`flagged`: done, but an audit found it invalid. `lost`: neither process nor result.
`missing`: never tried."""
LIVE = ("running", "pending")
UNFINISHED = tuple(state for state in STATES if state not in ("done", "flagged", *LIVE))
FAILED = tuple(state for state in UNFINISHED if state != "missing")

_QUIET_S = 120.0
_ENDED = {
    "TIMEOUT": "timed out",
    "DEADLINE": "timed out",
    "PREEMPTED": "preempted",
    "OUT_OF_MEMORY": "out of memory",
    "CANCELLED": "cancelled",
    "NODE_FAIL": "lost",
    "BOOT_FAIL": "lost",
}
_WAITS = ("PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "CONFIGURING")


@dataclass(frozen=True)
class CellStatus:
    """One cell as `status --cells` shows it."""

    cell: str
    array: str
    index: int
    state: str
    attempts: int = 0
    attempt: int | None = None
    """The attempt the state is about."""
    step: int | None = None
    steps: int | None = None
    step_s: float | None = None
    eta_s: float | None = None
    detail: str | None = None
    """Slurm's reason, or the first failing rank's one-line cause."""
    flags: tuple[str, ...] = ()
    job: str | None = None


@dataclass
class Known:
    """What is known of live and ended jobs before any cell is looked at."""

    answer: Answer
    queued: dict[tuple[str, int], queue.Job] = field(default_factory=dict)
    supervised: dict[tuple[str, int], Entry] = field(default_factory=dict)
    submitted: dict[tuple[str, int], Entry] = field(default_factory=dict)


def judge(
    place: Place, tries: Sequence[AttemptPaths], outcome: Outcome | None, known: Known
) -> CellStatus:
    """`tries` are the cell's attempts, newest first; `outcome` is its best result."""
    newest = tries[0] if tries else None
    cell = CellStatus(
        cell=place.id,
        array=place.array,
        index=place.index,
        state="missing",
        attempts=len(tries),
        attempt=newest.number if newest else None,
        steps=place.train_steps,
    )
    key = (place.array, place.index)
    # A result newer than the submission ends what the submission began.
    entry = known.submitted.get(key)
    ended = outcome is not None and entry is not None and _after(outcome.ended_at, entry.at)
    live = _live(cell, newest if outcome is None else None, known, ended)
    if live is not None:
        return live
    if outcome is None or outcome.status != "done":
        return _unfinished(place, cell, newest, outcome, known)
    later = None if outcome.attempt == cell.attempt else f"attempt {cell.attempt} is not valid"
    return replace(
        cell,
        state="done" if outcome.valid else "flagged",
        attempt=outcome.attempt,
        step=place.train_steps,
        detail=later or (", ".join(outcome.flags) or None),
        flags=outcome.flags,
    )


def _live(
    cell: CellStatus, attempt: AttemptPaths | None, known: Known, ended: bool
) -> CellStatus | None:
    """Running or pending, as the queue or a supervisor has it; None for a cell at rest.

    `attempt` is the newest, if it has no result yet.
    """
    key = (cell.array, cell.index)
    job, entry = known.queued.get(key), known.submitted.get(key)
    if job is not None:
        cell = replace(cell, job=f"{job.job_id}_{cell.index}")
        if job.state in _WAITS:
            return replace(cell, state="pending", detail=job.reason)
        if not ended:
            return _running(cell, attempt)
    if ended or entry is None:
        return None
    if key in known.supervised:
        waiting = replace(cell, state="pending", detail="waits for its turn")
        return waiting if attempt is None else _running(cell, attempt)
    if entry.cluster == "slurm" and known.answer.asked and _epoch(entry.at) > known.answer.at - 1:
        # The queue was looked at before this was submitted.
        name = f"{entry.job_id}_{cell.index}"
        return replace(cell, state="pending", detail="just submitted", job=name)
    return None


def _running(cell: CellStatus, attempt: AttemptPaths | None) -> CellStatus:
    """How far it is; `attempt` is None while the worker has not made its own yet."""
    if attempt is None:
        return replace(cell, state="running", detail="starting")
    progress = attempts.read_progress(attempt)
    left = max(0, (cell.steps or 0) - progress.step)
    return replace(
        cell,
        state="running",
        step=progress.step,
        step_s=progress.step_s,
        eta_s=None if progress.step_s is None else left * progress.step_s,
        detail=None if progress.step else "starting",
    )


def _unfinished(
    place: Place,
    cell: CellStatus,
    attempt: AttemptPaths | None,
    outcome: Outcome | None,
    known: Known,
) -> CellStatus:
    """Not queued and not done: ended in some way, or never begun."""
    entry = known.submitted.get((place.array, place.index))
    slurm = entry if entry is not None and entry.cluster == "slurm" else None
    header = attempts.read_header(attempt) if attempt else None
    job = _last_job(slurm, header, place.index)
    word = known.answer.ended.get(job or "", "")
    cell = replace(cell, job=job)
    if attempt is None:
        if not word:
            return cell
        detail = f"Slurm says {word}, and no worker began: see logs"
        return replace(cell, state=_ENDED.get(word, "failed"), detail=detail)
    abandoned = header is None and entry is not None and _here(entry)
    untold = outcome is None and not word and not abandoned
    if untold and _alive(attempt, header, known.answer.asked):
        return _running(cell, attempt)
    progress = attempts.read_progress(attempt)
    cause = outcome.cause if outcome else attempts.read_cause(attempt, place.world_size)
    if outcome is not None:
        plain = "interrupted" if outcome.status == "interrupted" else "failed"
    else:
        plain = "failed" if cause else "lost"
    return replace(
        cell,
        state=_ENDED.get(word, plain),
        step=progress.step,
        step_s=progress.step_s,
        detail=cause or f"no result; Slurm says {word or 'nothing'}",
    )


def _last_job(slurm: Entry | None, header: attempts.Header | None, index: int) -> str | None:
    """The newer of the job that was submitted and the job that made the newest attempt."""
    submitted = f"{slurm.job_id}_{index}" if slurm else None
    ran = header.job if header else None
    return max((job for job in (submitted, ran) if job), key=_number, default=None)


def _here(entry: Entry) -> bool:
    """A local submission of this machine: once its supervisor is gone, nobody begins a cell."""
    return entry.cluster == "local" and entry.host == socket.gethostname()


def _alive(attempt: AttemptPaths, header: attempts.Header | None, slurm_answers: bool) -> bool:
    """Whether somebody may still be writing to an attempt that no queue knows of."""
    if header is not None and header.host == socket.gethostname():
        return submissions.process_start(header.pid) is not None
    if header is not None and header.job and slurm_answers:
        return False
    return time.time() - attempts.last_sign_of_life(attempt) < _QUIET_S


def _number(job: str) -> int:
    head = job.partition("_")[0]
    return int(head) if head.isdigit() else 0


def _epoch(iso: str) -> float:
    try:
        return datetime.fromisoformat(iso).timestamp()
    except ValueError:
        return 0.0


def _after(iso: str, other: str) -> bool:
    return _epoch(iso) >= _epoch(other)
