"""The state of each cell, from the run folder and Slurm: `TABLE` says what comes first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jobs.run.attempt_files import memory_cause, read_progress, script_error
from jobs.run.cell_evidence import Evidence
from jobs.run.run_state import Key, RunState
from jobs.slurm.squeue_and_sacct import QueueAnswer, QueuedJob

LIVE = ("running", "pending")
MAY_RUN = (*LIVE, "unknown")
"""unknown: its job may wait or run, and Slurm does not say."""
FAILED = ("failed", "timed out", "preempted", "out of memory", "cancelled", "interrupted", "lost")
"""lost: ended without result or failure."""
UNFINISHED = (*FAILED, "missing")
"""missing: never started."""
STATES = ("done", "invalid", *MAY_RUN, *UNFINISHED)
"""invalid: done, but a check found an error."""


@dataclass(frozen=True)
class CellState:
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
    """Why it waits, or the cause of the failure, in one line."""
    flags: tuple[str, ...] = ()
    job: str | None = None


_SLURM_ENDS = {
    "TIMEOUT": "timed out",
    "DEADLINE": "timed out",
    "PREEMPTED": "preempted",
    "OUT_OF_MEMORY": "out of memory",
    "CANCELLED": "cancelled",
    "NODE_FAIL": "lost",
    "BOOT_FAIL": "lost",
}


def cell_states(state: RunState, queue: QueueAnswer) -> list[CellState]:
    """The state of every cell, in the manifest's order."""
    queued: dict[Key, QueuedJob] = {}
    # The newest job counts: a cell may be measured again while its old block still runs.
    for job in sorted(queue.jobs, key=lambda job: int(job.job_id)):
        for number in job.numbers():
            queued |= dict.fromkeys(state.cells_of.get((job.array, number), ()), job)
    known = (Evidence(cell, state, queue, queued.get(cell.key)) for cell in state.cells)
    return [next(state_of(one) for applies, state_of in TABLE if applies(one)) for one in known]


def _cell(known: Evidence, state: str, **details: Any) -> CellState:
    """The cell in a state, taken from its newest attempt unless the details name another."""
    cell, newest = known.cell, known.newest
    details = {"attempt": newest.number if newest else None, "steps": cell.train_steps} | details
    return CellState(cell.id, cell.array, cell.index, state, len(known.attempts), **details)


def waiting(known: Evidence) -> CellState:
    """`pending`, or `unknown` where nobody says whether the job waits."""
    state = "pending" if known.job.phase == "waits" else "unknown"
    return _cell(known, state, detail=known.job.detail, job=known.task)


def running(known: Evidence) -> CellState:
    """`running`, with the progress of the newest attempt."""
    step, step_s = 0, None
    if known.newest is not None and known.newest.result is None:
        step, step_s = read_progress(known.newest.paths)
    if not step:
        return _cell(known, "running", detail="starting", job=known.task)
    eta_s = None if step_s is None else max(0, known.cell.train_steps - step) * step_s
    return _cell(known, "running", step=step, step_s=step_s, eta_s=eta_s, job=known.task)


def with_result(known: Evidence) -> CellState:
    """`done`, or `invalid` where a check found an error."""
    chosen, newest = known.chosen, known.newest
    assert chosen is not None
    assert chosen.result is not None
    assert newest is not None
    flags = tuple(chosen.result.flags)
    newer = f"attempt {newest.number} is not valid" if newest.number != chosen.number else None
    return _cell(
        known,
        "done" if chosen.valid else "invalid",
        attempt=chosen.number,
        step=known.cell.train_steps,
        detail=newer or ", ".join(flags) or None,
        flags=flags,
    )


def ended(known: Evidence) -> CellState:
    """How the newest attempt, or the job before it, ended; `missing` without either."""
    newest, word = known.newest, known.word
    cause = known.cause or script_error(known.log_lines)
    memory = memory_cause(known.log_lines)
    if newest is None and not (cause or word or memory):
        return _cell(known, "missing")
    if newest is not None and newest.status == "interrupted":
        state, memory = "interrupted", None
        cause = cause or "stopped by a signal; a rerun resumes from its checkpoint"
    else:
        has_failed = newest is None or newest.result is not None or cause is not None
        state = "failed" if has_failed else "lost"
    # The end of a block is not the end of a cell in it that had failed before.
    if newest is None or state != "failed" or not known.is_in_block:
        state = _SLURM_ENDS.get(word, state)
    return _cell(
        known,
        "out of memory" if memory else state,
        step=(read_progress(newest.paths)[0] or None) if newest else None,
        detail=memory or cause or (f"no result; Slurm says {word}" if word else "no result"),
        job=known.task,
    )


TABLE: tuple[tuple[Callable[[Evidence], bool], Callable[[Evidence], CellState]], ...] = (
    (lambda known: known.job.phase == "waits", waiting),
    (lambda known: known.job.phase == "runs", running),
    (lambda known: known.chosen is not None and known.chosen.valid, with_result),
    (lambda known: known.job.phase == "unknown", waiting),
    (lambda known: known.chosen is not None and known.chosen.status == "done", with_result),
    (lambda known: known.runs_by_hand, running),
    (lambda known: True, ended),
)
"""What is known of a cell, and the state that it then has; the first line that applies counts."""
