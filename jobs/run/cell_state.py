"""The state of each cell, from the run folder and Slurm's queue: one table of precedence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gnnhpc.experiment.manifest import Cell
from jobs.run.cell_evidence import CellState, Evidence, JobsOfCells
from jobs.run.run_state import (
    RunState,
    epoch_seconds,
    last_write,
    may_still_run,
    read_process,
    read_progress,
)
from jobs.slurm.queue import NO_SLURM, WAITING_STATES, QueueAnswer

STATES = (
    "done",
    "invalid",
    "running",
    "pending",
    "unknown",
    "failed",
    "timed out",
    "preempted",
    "out of memory",
    "cancelled",
    "interrupted",
    "lost",
    "missing",
)
"""invalid: done, but a check found an error. unknown: its job may wait or run, and Slurm does not
say. lost: ended without result or failure. missing: never started."""
LIVE = ("running", "pending")
MAY_RUN = (*LIVE, "unknown")
UNFINISHED = tuple(state for state in STATES if state not in ("done", "invalid", *MAY_RUN))
FAILED = tuple(state for state in UNFINISHED if state != "missing")
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
    jobs = JobsOfCells(state, queue)
    seen = [Evidence(cell, state, queue, jobs) for cell in (cells or state.cells)]
    return [next(each for rule in RULES if (each := rule(one)) is not None) for one in seen]


def in_the_queue(seen: Evidence) -> CellState | None:
    """A job in the queue has yet to run the cell, or runs it."""
    job = seen.jobs.queued.get(seen.key)
    if job is None or (turn := seen.jobs.turn(seen.key)) == "over":
        return None
    number = seen.state.blocks.number(job.array, seen.key)
    block = "" if job.array == seen.cell.array else f"block {number} of {job.array}"
    pending = replace(seen.base, state="pending", job=job.task(number))
    if job.state in WAITING_STATES:
        waits = f"waits in {block}: {job.reason}" if block else job.reason
        return replace(pending, detail=waits, reason=job.reason)
    if turn == "waits":
        return replace(pending, detail=f"waits for its turn in {block}")
    interrupted = seen.newest is not None and seen.newest.status == "interrupted"
    detail = "interrupted, and its job has not ended" if interrupted else None
    return replace(seen.running(detail), job=job.task(number))


def with_a_supervisor(seen: Evidence) -> CellState | None:
    """A process of this machine that runs local cells has yet to run the cell, or runs it."""
    if not seen.is_local or seen.submission is None or seen.has_ended:
        return None
    if seen.submission.job_id not in seen.jobs.supervisors:
        return None
    since = epoch_seconds(seen.submission.at)
    if seen.newest is None or last_write(seen.newest.paths) < since:
        return replace(seen.base, state="pending", detail="waits for its turn")
    return seen.running() if may_still_run(seen.newest, slurm_answers=True) else None


def valid_result(seen: Evidence) -> CellState | None:
    """An attempt is done and valid."""
    return _with_result(seen, "done") if seen.chosen is not None and seen.chosen.valid else None


def on_another_host(seen: Evidence) -> CellState | None:
    """The supervisor of a local run on another host may come to the cell."""
    one = seen.submission
    if one is None or not seen.is_local or seen.newest is not None:
        return None
    if one.is_of_this_host or one.started is None:
        return None
    detail = f"process {one.job_id} on {one.host} may come to it: ask there"
    return replace(seen.base, state="unknown", detail=detail)


def unknown_to_slurm(seen: Evidence) -> CellState | None:
    """Neither the files nor Slurm say that the newest job of the cell has ended."""
    # A submission whose answer was lost is not recorded.
    unrecorded = not seen.state.submissions and seen.queue.error not in (None, NO_SLURM)
    known = bool(seen.state.slurm_arrays or seen.task or unrecorded)
    if seen.has_ended or seen.is_local or not (seen.state.may_be_in_slurm and known):
        return None
    base = replace(seen.base, job=seen.task)
    live = seen.queue.accounts_as_live(seen.task)
    if seen.queue.answered:
        detail = f"squeue does not list {seen.task}, sacct: {seen.word}"
        return replace(base, state="unknown", detail=detail) if live else None
    if seen.word in WAITING_STATES:
        return replace(base, state="pending", detail=f"sacct: {seen.word}")
    if seen.word and not live and seen.word not in _MAY_COME_BACK:
        return None
    if live or (seen.newest is not None and may_still_run(seen.newest, slurm_answers=False)):
        return seen.running()
    return replace(base, state="unknown", detail=f"Slurm does not say: {seen.queue.error}")


def invalid_result(seen: Evidence) -> CellState | None:
    """An attempt is done, and a check found it invalid."""
    done = seen.chosen is not None and seen.chosen.status == "done"
    return _with_result(seen, "invalid") if done else None


def runs_elsewhere(seen: Evidence) -> CellState | None:
    """An attempt that was started without Slurm or a supervisor may still run."""
    if seen.newest is None or seen.word or seen.newest.result is not None:
        return None
    if read_process(seen.newest.paths) is None and seen.cause is not None:
        return None
    alive = may_still_run(seen.newest, slurm_answers=seen.queue.answered)
    return seen.running() if alive else None


def ended_without_result(seen: Evidence) -> CellState | None:
    """The newest attempt was interrupted, was killed, failed, or ended without a word."""
    if seen.newest is None:
        return None
    cause, result = seen.cause, seen.newest.result
    if result is not None and result.status == "interrupted":
        state = "interrupted"
        cause = cause or "stopped by a signal; a rerun resumes from its checkpoint"
    else:
        state = "failed" if result is not None or cause else "lost"
        cause = cause or (None if seen.is_local else seen.script_error)
    in_block = seen.submission is not None and seen.submission.array != seen.cell.array
    if not (in_block and state == "failed"):
        # The end of a block is not the end of a cell in it that had failed before.
        state = _SLURM_ENDS.get(seen.word, state)
    if state != "interrupted" and seen.memory_line:
        state, cause = "out of memory", seen.memory_line
    if cause is None and seen.is_local and seen.submission is not None:
        cause = f"no result of its ranks {seen.submission.place}"
    return replace(
        seen.base,
        state=state,
        step=read_progress(seen.newest.paths).step or None,
        detail=cause or f"no result; Slurm says {seen.word or 'nothing'}",
        job=seen.task,
    )


def never_began(seen: Evidence) -> CellState | None:
    """The newest job ended before its ranks began; its log has the error of its script."""
    error = seen.script_error or seen.memory_line
    if not seen.word and error is None:
        return None
    state = _SLURM_ENDS.get(seen.word, "failed")
    state = "out of memory" if seen.memory_line else "failed" if error else state
    detail = error or f"Slurm says {seen.word}, and no rank began: see logs"
    return replace(seen.base, state=state, detail=detail, job=seen.task)


def missing(seen: Evidence) -> CellState | None:
    """The cell was never started."""
    return seen.base


RULES = (
    in_the_queue,
    with_a_supervisor,
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
    return replace(
        seen.base,
        state=state,
        attempt=chosen.number,
        step=seen.cell.train_steps,
        detail=f"attempt {newer} is not valid" if newer else ", ".join(flags) or None,
        flags=flags,
    )
