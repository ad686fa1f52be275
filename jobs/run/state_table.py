"""The state of each cell, from the run folder and Slurm: `RULES` is the table of precedence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Literal

from gnnhpc.experiment.manifest import Cell
from gnnhpc.records.attempts import Attempt, choose_attempt
from jobs.run.cell_state import CellState
from jobs.run.job_logs import job_log, lines_from_the_end, memory_cause, script_error
from jobs.run.local_lock import running_here
from jobs.run.run_state import (
    RunState,
    epoch_seconds,
    failure_cause,
    job_of,
    last_write,
    may_still_run,
    read_process,
    read_progress,
)
from jobs.slurm.paired_blocks import Key
from jobs.slurm.queue import NO_SLURM, WAITING_STATES, QueueAnswer, QueuedJob

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
    return [next(found for rule in RULES if (found := rule(one)) is not None) for one in known]


class Evidence:
    """All that is known about one cell."""

    def __init__(
        self,
        cell: Cell,
        state: RunState,
        queue: QueueAnswer,
        queued: QueuedJob | None,
        supervisors: set[str],
    ) -> None:
        self.cell, self.state, self.queue, self.queued = cell, state, queue, queued
        self.key = cell.key
        attempts = state.attempts.get(cell.id, [])
        self.newest = attempts[-1] if attempts else None
        self.chosen = choose_attempt(attempts)
        self.submission = state.submitted.get(self.key)
        self.is_local = self.submission is not None and self.submission.cluster == "local"
        self.submitted_at = epoch_seconds(self.submission.at) if self.submission else 0.0
        self.is_supervised = (
            self.submission is not None and self.is_local and self.submission.job_id in supervisors
        )
        self.base = CellState(
            cell=cell.id,
            array=cell.array,
            index=cell.index,
            state="missing",
            attempts=len(attempts),
            attempt=self.newest.number if self.newest else None,
            steps=cell.train_steps,
        )

    @cached_property
    def turn(self) -> Literal["waits", "runs", "over"]:
        """Whether the job, or the supervisor, has yet to run the cell, runs it, or has run it.

        A job runs the cells of its block in order; the one last written to is where it is.
        """
        if self.queued is None:
            if self.newest is None or last_write(self.newest.paths) < self.submitted_at:
                return "waits"
            return "runs" if may_still_run(self.newest, slurm_answers=True) else "over"
        if self.queued.state in WAITING_STATES:
            return "waits"
        number = self.state.blocks.number(self.queued.array, self.key)
        keys = self.state.blocks.keys(self.queued.array, number)
        tried = {key: self._attempt_by(self.queued.task(number), key) for key in keys}
        attempt = tried[self.key]
        if attempt is not None and _has_ended(attempt):
            return "over"
        written = {key: last_write(one.paths) if one else 0.0 for key, one in tried.items()}
        return "runs" if self.key == max(keys, key=lambda key: written[key]) else "waits"

    def _attempt_by(self, task: str, key: Key) -> Attempt | None:
        """The newest attempt at a cell, if this task made it."""
        newest = self.state.newest_attempt(key)
        if newest is None:
            return None
        if (job := job_of(newest)) is not None:
            return newest if job == task else None
        # Its ranks have written nothing yet: it is older than the job if it is before it.
        submission = self.state.submitted.get(key)
        since = epoch_seconds(submission.at) if submission else 0.0
        return newest if last_write(newest.paths) >= since else None

    @cached_property
    def task(self) -> str | None:
        """Slurm's name of the newest task of this cell that is known: submitted, or by hand."""
        found = []
        if self.submission is not None and not self.is_local:
            number = self.state.blocks.number(self.submission.array, self.key)
            found.append(self.submission.task(number))
        if self.newest is not None and (job := job_of(self.newest)):
            found.append(job)
        return max(found, key=lambda job: int(job.partition("_")[0]), default=None)

    @cached_property
    def word(self) -> str:
        """What the accounting says of that task; empty where it says nothing."""
        return self.queue.state_of(self.task)

    @cached_property
    def has_ended(self) -> bool:
        """Whether the newest submission of this cell has its result."""
        if self.queued is not None:
            return self.turn == "over"
        if self.newest is None or not _has_ended(self.newest):
            return False
        if not self.is_local and job_of(self.newest) == self.task:
            return True
        result = self.newest.result
        ended = epoch_seconds(result.ended_at) if result else last_write(self.newest.paths)
        return ended >= self.submitted_at

    @cached_property
    def cause(self) -> str | None:
        """What the newest attempt says of its failure."""
        return failure_cause(self.newest, self.cell.world_size) if self.newest else None

    @cached_property
    def log_lines(self) -> list[str]:
        """The last lines of the log of the newest job, the last one first; its block's come after.

        A local run has none: its ranks say what went wrong.
        """
        if self.task is None:
            return []
        job, names = self.task.partition("_")[0], [self.key]
        if self.submission is not None and self.is_in_block:
            array = self.submission.array
            names.append((array, self.state.blocks.number(array, self.key)))
        logs = [job_log(self.state.paths, *name, job) for name in names]
        return [line for log in logs for line in lines_from_the_end(log)]

    @cached_property
    def memory_line(self) -> str | None:
        """What Slurm says of a rank that was killed for its memory; None where none was."""
        line = memory_cause(self.log_lines)
        if line is None and self.word == "OUT_OF_MEMORY":
            line = "Slurm says OUT_OF_MEMORY"
        task = self.queue.accounted.get(self.task or "")
        if line is None or task is None or not task.peak_memory:
            return line
        return f"{line}; a task used {task.peak_memory}, as sacct says"

    @property
    def is_in_block(self) -> bool:
        """Whether the newest submission runs the cell in a block."""
        return self.submission is not None and self.submission.array != self.cell.array

    @property
    def no_cause(self) -> str:
        """What is known of an end without a cause."""
        if self.newest is None:
            return f"Slurm says {self.word}, and no rank began: see logs"
        if self.is_local and self.submission is not None:
            return f"no result of its ranks {self.submission.place}"
        return f"no result; Slurm says {self.word or 'nothing'}"

    def running(self, detail: str | None = None) -> CellState:
        """`running`, with the progress of the newest attempt."""
        found = replace(self.base, state="running", job=self.task)
        if self.newest is None or self.newest.result is not None:
            return replace(found, detail=detail or "starting")
        progress = read_progress(self.newest.paths)
        left = max(0, self.cell.train_steps - progress.step)
        return replace(
            found,
            step=progress.step,
            step_s=progress.step_s,
            eta_s=None if progress.step_s is None else left * progress.step_s,
            detail=detail or (None if progress.step else "starting"),
        )

    def with_result(self, state: str) -> CellState:
        """The state of the chosen attempt, which has a result."""
        chosen = self.chosen
        assert chosen is not None
        assert chosen.result is not None
        flags = tuple(chosen.result.flags)
        newer = self.base.attempt if chosen.number != self.base.attempt else None
        return replace(
            self.base,
            state=state,
            attempt=chosen.number,
            step=self.cell.train_steps,
            detail=f"attempt {newer} is not valid" if newer else ", ".join(flags) or None,
            flags=flags,
        )


def _has_ended(attempt: Attempt) -> bool:
    """Whether the ranks have ended for good; interrupted ones go on in the same job."""
    if attempt.result is not None:
        return attempt.result.status != "interrupted"
    return bool(attempt.damage) or attempt.paths.failure(0).exists()


def in_the_queue(known: Evidence) -> CellState | None:
    """A job in the queue has yet to run the cell, or runs it."""
    job = known.queued
    if job is None or known.turn == "over":
        return None
    number = known.state.blocks.number(job.array, known.key)
    block = "" if job.array == known.cell.array else f"block {number} of {job.array}"
    pending = replace(known.base, state="pending", job=job.task(number))
    if job.state in WAITING_STATES:
        waits = f"waits in {block}: {job.reason}" if block else job.reason
        return replace(pending, detail=waits, reason=job.reason)
    if known.turn == "waits":
        return replace(pending, detail=f"waits for its turn in {block}")
    interrupted = known.newest is not None and known.newest.status == "interrupted"
    detail = "interrupted, and its job has not ended" if interrupted else None
    return replace(known.running(detail), job=job.task(number))


def with_a_supervisor(known: Evidence) -> CellState | None:
    """A process of this machine that runs local cells has yet to run the cell, or runs it."""
    if not known.is_supervised or known.has_ended or known.turn == "over":
        return None
    if known.turn == "runs":
        return known.running()
    waits_for = running_here(known.state.paths.root) or "its turn"
    return replace(known.base, state="pending", detail=f"waits for {waits_for}")


def valid_result(known: Evidence) -> CellState | None:
    """An attempt is done and valid."""
    valid = known.chosen is not None and known.chosen.valid
    return known.with_result("done") if valid else None


def on_another_host(known: Evidence) -> CellState | None:
    """The supervisor of a local run on another host may come to the cell."""
    one = known.submission
    if one is None or not known.is_local or known.newest is not None:
        return None
    if one.is_of_this_host or one.started is None:
        return None
    detail = f"process {one.job_id} on {one.host} may come to it: ask there"
    return replace(known.base, state="unknown", detail=detail)


def unknown_to_slurm(known: Evidence) -> CellState | None:
    """Neither the files nor Slurm say that the newest job of the cell has ended."""
    queue, newest = known.queue, known.newest
    # A submission whose answer was lost is not recorded.
    unrecorded = not known.state.submissions and queue.error not in (None, NO_SLURM)
    has_job = bool(known.state.slurm_arrays or known.task or unrecorded)
    if known.has_ended or known.is_local or not (known.state.may_be_in_slurm and has_job):
        return None
    base, live = replace(known.base, job=known.task), queue.accounts_as_live(known.task)
    if queue.answered:
        detail = f"squeue does not list {known.task}, sacct: {known.word}"
        return replace(base, state="unknown", detail=detail) if live else None
    if known.word in WAITING_STATES:
        return replace(base, state="pending", detail=f"sacct: {known.word}")
    if known.word and not live and known.word not in _MAY_COME_BACK:
        return None
    if live or (newest is not None and may_still_run(newest, slurm_answers=False)):
        return known.running()
    return replace(base, state="unknown", detail=f"Slurm does not say: {queue.error}")


def invalid_result(known: Evidence) -> CellState | None:
    """An attempt is done, and a check found it invalid."""
    done = known.chosen is not None and known.chosen.status == "done"
    return known.with_result("invalid") if done else None


def runs_by_hand(known: Evidence) -> CellState | None:
    """An attempt that was started without Slurm or a supervisor may still run."""
    newest = known.newest
    if newest is None or known.word or newest.result is not None:
        return None
    if read_process(newest.paths) is None and known.cause is not None:
        return None
    alive = may_still_run(newest, slurm_answers=known.queue.answered)
    return known.running() if alive else None


def ended(known: Evidence) -> CellState | None:
    """The newest attempt was interrupted, was killed or failed, or the job ended before it."""
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
        return None
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


def missing(known: Evidence) -> CellState | None:
    """The cell was never started."""
    return known.base


RULES = (
    in_the_queue,
    with_a_supervisor,
    valid_result,
    on_another_host,
    unknown_to_slurm,
    invalid_result,
    runs_by_hand,
    ended,
    missing,
)
"""The table of precedence: each rule says the state of the cells that it applies to."""
