"""What is known about one cell, from the run folder, the queue and the accounting."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from gnnhpc.experiment.manifest import Cell
from gnnhpc.records.attempts import Attempt, choose_attempt
from jobs.run.attempt_files import (
    epoch_seconds,
    failure_cause,
    job_log,
    job_of,
    last_write,
    lines_from_the_end,
    may_still_run,
    memory_cause,
    read_process,
)
from jobs.run.cell_state import CellState
from jobs.run.local_lock import running_here
from jobs.run.run_state import RunState
from jobs.run.submission_records import SubmissionRecord
from jobs.slurm.paired_blocks import Key
from jobs.slurm.queue import NO_SLURM, WAITING_STATES, QueueAnswer, QueuedJob

_MAY_COME_BACK = ("NODE_FAIL", "BOOT_FAIL", "PREEMPTED", "REQUEUED", "REVOKED")
"""Ends after which Slurm may queue the job again."""


@dataclass(frozen=True)
class Job:
    """What the newest job of a cell, or the supervisor of a local run, does with it."""

    phase: Literal["waits", "runs", "unknown", "over"]
    detail: str | None = None
    reason: str | None = None
    """Why Slurm lets it wait."""
    task: str | None = None
    """Slurm's name of the array task."""


OVER = Job("over")


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
        self.supervisors = supervisors
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
    def job(self) -> Job:
        """As the queue has the job; else as its process or Slurm's accounting does."""
        if self.queued is not None:
            return self._in_the_queue(self.queued)
        if self.submission is not None and self.is_local:
            return self._supervised(self.submission)
        return self._accounted()

    def _in_the_queue(self, job: QueuedJob) -> Job:
        number = self.state.blocks.number(job.array, self.key)
        task = job.task(number)
        block = "" if job.array == self.cell.array else f"block {number} of {job.array}"
        if self.turn == "waits" and job.state in WAITING_STATES:
            waits = f"waits in {block}: {job.reason}" if block else job.reason
            return Job("waits", waits, job.reason, task)
        if self.turn == "waits":
            return Job("waits", f"waits for its turn in {block}", task=task)
        interrupted = self.newest is not None and self.newest.status == "interrupted"
        detail = "interrupted, and its job has not ended" if interrupted else None
        return Job(self.turn, detail, task=task)

    def _supervised(self, one: SubmissionRecord) -> Job:
        if one.job_id in self.supervisors and not self.has_ended:
            if self.turn == "waits":
                waits_for = running_here(self.state.paths.root) or "its turn"
                return Job("waits", f"waits for {waits_for}")
            return Job(self.turn, task=self.task)
        if self.newest is None and not one.is_of_this_host and one.started is not None:
            detail = f"process {one.job_id} on {one.host} may come to it: ask there"
            return Job("unknown", detail)
        return OVER

    def _accounted(self) -> Job:
        """What the accounting says of a job that squeue does not list, or where it is silent."""
        queue, task = self.queue, self.task
        # A submission whose answer was lost is not recorded.
        unrecorded = not self.state.submissions and queue.error not in (None, NO_SLURM)
        has_job = bool(self.state.slurm_arrays or task or unrecorded)
        if self.has_ended or not (self.state.may_be_in_slurm and has_job):
            return OVER
        live = queue.accounts_as_live(task)
        if queue.answered:
            detail = f"squeue does not list {task}, sacct: {self.word}"
            return Job("unknown", detail, task=task) if live else OVER
        if self.word in WAITING_STATES:
            return Job("waits", f"sacct: {self.word}", task=task)
        if self.word and not live and self.word not in _MAY_COME_BACK:
            return OVER
        if live or (self.newest is not None and may_still_run(self.newest, slurm_answers=False)):
            return Job("runs", task=task)
        return Job("unknown", f"Slurm does not say: {queue.error}", task=task)

    @property
    def runs_by_hand(self) -> bool:
        """Whether an attempt that was started without Slurm or a supervisor may still run."""
        newest = self.newest
        if newest is None or self.word or newest.result is not None:
            return False
        if read_process(newest.paths) is None and self.cause is not None:
            return False
        return may_still_run(newest, slurm_answers=self.queue.answered)

    @cached_property
    def turn(self) -> Literal["waits", "runs", "over"]:
        """Whether the job, or the supervisor, has yet to run the cell, runs it, or has run it.

        A job runs the cells of its block in order; the one last written to is where it is.
        """
        if self.queued is None:
            if self.newest is None or last_write(self.newest.paths) < self.submitted_at:
                return "waits"
            return "runs" if may_still_run(self.newest, slurm_answers=True) else "over"
        number = self.state.blocks.number(self.queued.array, self.key)
        keys = self.state.blocks.keys(self.queued.array, number)
        tried = {key: self._attempt_by(self.queued.task(number), key) for key in keys}
        attempt = tried[self.key]
        if attempt is not None and attempt.valid:
            return "over"
        # A job that was requeued runs again what is not valid.
        if self.queued.state in WAITING_STATES:
            return "waits"
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

    @property
    def is_done(self) -> bool:
        """Whether an attempt is done, valid or not."""
        return self.chosen is not None and self.chosen.status == "done"

    @property
    def is_valid(self) -> bool:
        return self.chosen is not None and self.chosen.valid


def _has_ended(attempt: Attempt) -> bool:
    """Whether the ranks have ended for good; interrupted ones go on in the same job."""
    if attempt.result is not None:
        return attempt.result.status != "interrupted"
    return bool(attempt.damage) or attempt.paths.failure(0).exists()
