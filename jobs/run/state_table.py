"""The state of each cell, from the run folder and Slurm: `TABLE` says what comes first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from gnnhpc.experiment.manifest import Cell
from jobs.run.attempt_files import read_progress, script_error
from jobs.run.cell_evidence import Evidence
from jobs.run.cell_state import CellState
from jobs.run.run_state import RunState
from jobs.slurm.paired_blocks import Key
from jobs.slurm.queue import QueueAnswer, QueuedJob

_SLURM_ENDS = {
    "TIMEOUT": "timed out",
    "DEADLINE": "timed out",
    "PREEMPTED": "preempted",
    "OUT_OF_MEMORY": "out of memory",
    "CANCELLED": "cancelled",
    "NODE_FAIL": "lost",
    "BOOT_FAIL": "lost",
}


def cell_states(
    state: RunState, queue: QueueAnswer, cells: Sequence[Cell] | None = None
) -> list[CellState]:
    """The state of every cell, or of some."""
    queued: dict[Key, QueuedJob] = {}
    # The newest job counts: a cell may be measured again while its old block still runs.
    for job in sorted(queue.jobs, key=lambda job: int(job.job_id)):
        for number in job.numbers():
            queued |= dict.fromkeys(state.blocks.keys(job.array, number), job)
    supervisors = state.supervisors
    known = (
        Evidence(cell, state, queue, queued.get(cell.key), supervisors)
        for cell in (cells or state.cells)
    )
    return [next(say(one) for applies, say in TABLE if applies(one)) for one in known]


def waiting(known: Evidence) -> CellState:
    """`pending`, or `unknown` where nobody says whether the job waits."""
    job = known.job
    state = "pending" if job.phase == "waits" else "unknown"
    return replace(known.base, state=state, detail=job.detail, reason=job.reason, job=job.task)


def running(known: Evidence) -> CellState:
    """`running`, with the progress of the newest attempt."""
    job = known.job
    task, detail = job.task or known.task, job.detail or "starting"
    found = replace(known.base, state="running", detail=detail, job=task)
    if known.newest is None or known.newest.result is not None:
        return found
    progress = read_progress(known.newest.paths)
    if not progress.step:
        return found
    left = max(0, known.cell.train_steps - progress.step)
    return replace(
        found,
        step=progress.step,
        step_s=progress.step_s,
        eta_s=None if progress.step_s is None else left * progress.step_s,
        detail=job.detail,
    )


def with_result(known: Evidence) -> CellState:
    """`done`, or `invalid` where a check found an error."""
    chosen = known.chosen
    assert chosen is not None
    assert chosen.result is not None
    flags = tuple(chosen.result.flags)
    newer = known.base.attempt if chosen.number != known.base.attempt else None
    return replace(
        known.base,
        state="done" if chosen.valid else "invalid",
        attempt=chosen.number,
        step=known.cell.train_steps,
        detail=f"attempt {newer} is not valid" if newer else ", ".join(flags) or None,
        flags=flags,
    )


def ended(known: Evidence) -> CellState:
    """How the newest attempt, or the job before it, ended; `missing` without either."""
    newest, word, cause = known.newest, known.word, known.cause
    if newest is not None and newest.status == "interrupted":
        state = "interrupted"
        cause = cause or "stopped by a signal; a rerun resumes from its checkpoint"
    else:
        without = newest is not None and newest.result is None and cause is None
        state = "lost" if without else "failed"
        cause = cause or (None if known.is_local else script_error(known.log_lines))
    memory = known.memory_line if state != "interrupted" else None
    if newest is None and not (cause or word or memory):
        return known.base
    # The end of a block is not the end of a cell in it that had failed before.
    if newest is None or state != "failed" or not known.is_in_block:
        state = _SLURM_ENDS.get(word, state)
    return replace(
        known.base,
        state="out of memory" if memory else state,
        step=(read_progress(newest.paths).step or None) if newest else None,
        detail=memory or cause or known.no_cause,
        job=known.task,
    )


TABLE: tuple[tuple[Callable[[Evidence], bool], Callable[[Evidence], CellState]], ...] = (
    (lambda known: known.job.phase == "waits", waiting),
    (lambda known: known.job.phase == "runs", running),
    (lambda known: known.is_valid, with_result),
    (lambda known: known.job.phase == "unknown", waiting),
    (lambda known: known.is_done, with_result),
    (lambda known: known.runs_by_hand, running),
    (lambda known: True, ended),
)
"""What is known of a cell, and the state that it then has; the first line that applies counts."""
