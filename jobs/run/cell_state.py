"""The state of each cell, from the run folder and Slurm's queue: one table of precedence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from gnnhpc.core.run_paths import RunPaths
from gnnhpc.experiment.manifest import Cell
from jobs.run.attempt_progress import (
    epoch_seconds,
    last_write,
    may_still_run,
    read_process,
    read_progress,
)
from jobs.run.cell_evidence import Evidence, JobsOfCells
from jobs.run.run_state import RunState
from jobs.run.states import CellState
from jobs.slurm.queue import NO_SLURM, WAITING_STATES, QueueAnswer

_SLURM_ENDS = {
    "TIMEOUT": "timed out",
    "DEADLINE": "timed out",
    "PREEMPTED": "preempted",
    "OUT_OF_MEMORY": "out of memory",
    "CANCELLED": "cancelled",
    "NODE_FAIL": "lost",
    "BOOT_FAIL": "lost",
}
_MAY_COME_BACK = ("NODE_FAIL", "BOOT_FAIL", "PREEMPTED", "REQUEUED", "REVOKED")
"""Ends after which Slurm may queue the job again."""


def cell_states(
    state: RunState, queue: QueueAnswer, cells: Sequence[Cell] | None = None
) -> list[CellState]:
    """The state of every cell, or of some: what the first rule of `RULES` that applies says."""
    found = []
    jobs = JobsOfCells(state, queue)
    for cell in state.cells if cells is None else cells:
        evidence = Evidence(cell, state, queue, jobs)
        found.append(next(each for rule in RULES if (each := rule(evidence)) is not None))
    return found


def in_the_queue(seen: Evidence) -> CellState | None:
    """A job in the queue has yet to run the cell, or runs it."""
    job = seen.queued
    if job is None or (turn := seen.jobs.turn(seen.key)) == "over":
        return None
    number = seen.state.blocks.number(job.array, seen.key)
    block = "" if job.array == seen.cell.array else f"block {number} of {job.array}"
    base = replace(seen.base, job=job.task(number))
    if job.state in WAITING_STATES:
        waits = f"waits in {block}: {job.reason}" if block else job.reason
        return replace(base, state="pending", detail=waits, reason=job.reason)
    if turn == "waits":
        return replace(base, state="pending", detail=f"waits for its turn in {block}")
    interrupted = seen.newest is not None and seen.newest.status == "interrupted"
    detail = "interrupted, and its job has not ended" if interrupted else None
    return replace(seen.running(detail), job=job.task(number))


def with_a_supervisor(seen: Evidence) -> CellState | None:
    """A process of this machine that runs local cells has yet to run the cell, or runs it."""
    submission = seen.submission
    if submission is None or submission.cluster != "local" or seen.has_ended:
        return None
    if submission.job_id not in seen.jobs.supervisors:
        return None
    began = seen.newest is not None and (
        last_write(seen.newest.paths) >= epoch_seconds(submission.at)
    )
    if not began or seen.newest is None:
        return replace(seen.base, state="pending", detail="waits for its turn")
    return seen.running() if may_still_run(seen.newest, slurm_answers=True) else None


def just_submitted(seen: Evidence) -> CellState | None:
    """The kept answer of the queue is older than the submission."""
    submission = seen.submission
    if submission is None or submission.cluster != "slurm" or seen.has_ended:
        return None
    if not (seen.queue.answered and seen.queue.kept):
        return None
    if epoch_seconds(submission.at) <= seen.queue.at - 1:
        return None
    return replace(seen.base, state="pending", detail="just submitted", job=seen.task)


def valid_result(seen: Evidence) -> CellState | None:
    """An attempt is done and valid."""
    if seen.chosen is None or not seen.chosen.valid:
        return None
    return _with_result(seen, "done")


def on_another_host(seen: Evidence) -> CellState | None:
    """The supervisor of a local run on another host may come to the cell."""
    submission = seen.submission
    if submission is None or submission.cluster != "local" or seen.newest is not None:
        return None
    if submission.is_of_this_host or submission.started is None:
        return None
    detail = f"process {submission.job_id} on {submission.host} may come to it: ask there"
    return replace(seen.base, state="unknown", detail=detail)


def unknown_to_slurm(seen: Evidence) -> CellState | None:
    """Neither the files nor Slurm say that the newest job of the cell has ended."""
    local = seen.submission is not None and seen.submission.cluster == "local"
    # A submission whose answer was lost is not recorded.
    unrecorded = not seen.state.submissions and seen.queue.error not in (None, NO_SLURM)
    known = bool(seen.state.slurm_arrays or seen.task or unrecorded)
    in_slurm = seen.state.may_be_in_slurm and known
    if seen.has_ended or local or not in_slurm:
        return None
    base = replace(seen.base, job=seen.task)
    if not seen.queue.answered:
        return _without_squeue(seen, base)
    if not seen.queue.accounts_as_live(seen.task):
        return None
    detail = f"squeue does not list {seen.task}, sacct: {seen.word}"
    return replace(base, state="unknown", detail=detail)


def _without_squeue(seen: Evidence, base: CellState) -> CellState | None:
    """What the accounting says, else whether the newest attempt has just written a file."""
    if seen.word in WAITING_STATES:
        return replace(base, state="pending", detail=f"sacct: {seen.word}")
    live = seen.queue.accounts_as_live(seen.task)
    if seen.word and not live and seen.word not in _MAY_COME_BACK:
        return None
    writes = seen.newest is not None and may_still_run(seen.newest, slurm_answers=False)
    if live or writes:
        return seen.running()
    return replace(base, state="unknown", detail=f"Slurm does not say: {seen.queue.error}")


def invalid_result(seen: Evidence) -> CellState | None:
    """An attempt is done, and a check found it invalid."""
    if seen.chosen is None or seen.chosen.status != "done":
        return None
    return _with_result(seen, "flagged")


def runs_elsewhere(seen: Evidence) -> CellState | None:
    """An attempt that was started without Slurm or a supervisor may still run."""
    if seen.newest is None or seen.word or seen.newest.result is not None:
        return None
    if read_process(seen.newest.paths) is None and seen.cause is not None:
        return None
    alive = may_still_run(seen.newest, slurm_answers=seen.queue.answered)
    return seen.running() if alive else None


def ended_without_result(seen: Evidence) -> CellState | None:
    """The newest attempt was interrupted, failed, or ended without a word."""
    if seen.newest is None:
        return None
    cause, result = seen.cause, seen.newest.result
    if result is not None and result.status == "interrupted":
        state = "interrupted"
        cause = cause or "stopped by a signal; a rerun resumes from its checkpoint"
    else:
        state = "failed" if result is not None or cause else "lost"
    in_block = seen.submission is not None and seen.submission.array != seen.cell.array
    if not (in_block and state == "failed" and seen.word != "OUT_OF_MEMORY"):
        # The end of a block is not the end of a cell in it that had failed before.
        state = _SLURM_ENDS.get(seen.word, state)
    progress = read_progress(seen.newest.paths)
    if cause is None:
        local = seen.task is None and seen.submission is not None
        where = seen.submission.place if local and seen.submission else ""
        says = f"no result; Slurm says {seen.word or 'nothing'}"
        cause = f"no result of its ranks {where}" if local else says
    return replace(
        seen.base,
        state=state,
        step=progress.step,
        step_s=progress.step_s,
        detail=cause,
        job=seen.task,
    )


def never_began(seen: Evidence) -> CellState | None:
    """The job ended before a rank began; its log has the error of its script."""
    error = _script_error(seen)
    if not seen.word and error is None:
        return None
    detail = error or f"Slurm says {seen.word}, and no rank began: see logs"
    state = "failed" if error else _SLURM_ENDS.get(seen.word, "failed")
    return replace(seen.base, state=state, detail=detail, job=seen.task)


def missing(seen: Evidence) -> CellState:
    """The cell was never started."""
    return seen.base


RULES: tuple[Callable[[Evidence], CellState | None], ...] = (
    in_the_queue,
    with_a_supervisor,
    just_submitted,
    valid_result,
    on_another_host,
    unknown_to_slurm,
    invalid_result,
    runs_elsewhere,
    ended_without_result,
    never_began,
    missing,
)
"""The table of precedence: each rule says the state of the cells that it applies to."""


def _with_result(seen: Evidence, state: str) -> CellState:
    chosen = seen.chosen
    assert chosen is not None and chosen.result is not None
    flags = tuple(chosen.result.flags)
    newer = seen.base.attempt if chosen.number != seen.base.attempt else None
    detail = ", ".join(flags) or None
    return replace(
        seen.base,
        state=state,
        attempt=chosen.number,
        step=seen.cell.train_steps,
        detail=f"attempt {newer} is not valid" if newer else detail,
        flags=flags,
    )


def _script_error(seen: Evidence) -> str | None:
    """The error with which the newest job's script ended, from the last line of its log."""
    submission = seen.submission
    if submission is None or submission.cluster != "slurm":
        return None
    number = seen.state.blocks.number(submission.array, seen.key)
    log = job_log(seen.state.paths, submission.array, number, submission.job_id)
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    return lines[-1].removeprefix("error: ") if lines and lines[-1].startswith("error: ") else None


def job_log(paths: RunPaths, array: str, number: int, job: str) -> Path:
    """The log of one array task, which its script opens."""
    return paths.logs / f"{array}-{number}-{job}.log"
