"""What is known about one cell, from the run folder, the queue and the accounting."""

from __future__ import annotations

from datetime import datetime
from functools import cached_property
from typing import Literal, NamedTuple

from gnnhpc.experiment.manifest import Cell
from gnnhpc.records.attempts import Attempt, choose_attempt
from jobs.run.attempt_files import (
    failure_cause,
    job_log,
    job_of,
    last_write,
    lines_from_the_end,
    may_still_run,
    read_header,
)
from jobs.run.run_state import Key, RunState
from jobs.slurm.squeue_and_sacct import (
    ENDED_STATES,
    NO_SLURM,
    WAITING_STATES,
    QueueAnswer,
    QueuedJob,
)

_MAY_COME_BACK = ("NODE_FAIL", "BOOT_FAIL", "PREEMPTED", "REQUEUED", "REVOKED")
"""Ends after which Slurm may queue the job again."""


class Job(NamedTuple):
    """What the newest job of a cell, or the process of a local run, does with it."""

    phase: Literal["waits", "runs", "over", "unknown"]
    detail: str | None = None


OVER = Job("over")


class Evidence:
    """All that is known about one cell."""

    def __init__(
        self, cell: Cell, state: RunState, queue: QueueAnswer, queued: QueuedJob | None
    ) -> None:
        self.cell, self.state, self.queue, self.queued = cell, state, queue, queued
        self.key, self.attempts = cell.key, state.attempts[cell.key]
        self.newest = self.attempts[-1] if self.attempts else None
        self.chosen = choose_attempt(self.attempts)
        self.submission = state.submitted.get(self.key)
        self.is_local = self.submission is not None and self.submission.cluster == "local"
        self.is_in_block = self.submission is not None and self.submission.array != cell.array

    @cached_property
    def job(self) -> Job:
        """As the queue has the job; else as its process or Slurm's accounting does."""
        if self.queued is not None:
            return self._in_the_queue(self.queued)
        return self._run_locally() if self.is_local else self._accounted()

    def _in_the_queue(self, job: QueuedJob) -> Job:
        """A job that was requeued runs again what is not valid, in the order of its block."""
        number = self.state.number_in[job.array, self.key]
        task, keys = f"{job.job_id}_{number}", self.state.cells_of[job.array, number]
        attempts = {key: self._attempt_by(task, key) for key in keys}
        mine = attempts[self.key]
        if mine is not None and mine.valid:
            return OVER
        if job.state in WAITING_STATES:
            return Job("waits", job.reason)
        if mine is not None and _has_ended(mine):
            return OVER
        # The cell that was last written to is the one that it runs.
        written = {key: last_write(one.paths) if one else 0.0 for key, one in attempts.items()}
        if self.key == max(keys, key=lambda key: written[key]):
            return Job("runs")
        return Job("waits", f"waits for its turn in block {number} of {job.array}")

    def _run_locally(self) -> Job:
        one, attempt = self.submission, self._attempt_by(None, self.key)
        assert one is not None
        if attempt is None and not one.is_of_this_host:
            return Job("unknown", f"process {one.job_id} on {one.host} may come to it: ask there")
        if one.job_id not in self.state.local_processes:
            return OVER
        if attempt is None:
            return Job("waits", "waits for its turn")
        return Job("runs") if may_still_run(attempt, slurm_answers=True) else OVER

    def _accounted(self) -> Job:
        """What the accounting says of a job that squeue does not list, or where it is silent."""
        queue, task = self.queue, self.task
        # A submission whose answer was lost is not recorded.
        unrecorded = not self.state.submissions and queue.error not in (None, NO_SLURM)
        attempt = self._attempt_by(task, self.key)
        has_job = bool(self.state.slurm_arrays or task or unrecorded)
        if not has_job or (attempt is not None and _has_ended(attempt)):
            return OVER
        live = bool(self.word) and self.word not in ENDED_STATES
        if queue.answered:
            detail = f"squeue does not list {task}, sacct: {self.word}"
            return Job("unknown", detail) if live else OVER
        if self.word in WAITING_STATES:
            return Job("waits", f"sacct: {self.word}")
        if self.word and not live and self.word not in _MAY_COME_BACK:
            return OVER
        if live or (self.newest is not None and may_still_run(self.newest, slurm_answers=False)):
            return Job("runs")
        return Job("unknown", f"Slurm does not say: {queue.error}")

    @property
    def runs_by_hand(self) -> bool:
        """Whether an attempt that was started by hand, outside Slurm, may still run."""
        newest = self.newest
        if newest is None or self.word:
            return False
        if self.cause is not None and not read_header(newest.paths):
            return False
        return may_still_run(newest, slurm_answers=self.queue.answered)

    def _attempt_by(self, task: str | None, key: Key) -> Attempt | None:
        """The newest attempt at a cell, if this task or this local run made it."""
        attempts = self.state.attempts[key]
        if not attempts:
            return None
        newest = attempts[-1]
        if task is not None and (job := job_of(newest)) is not None:
            return newest if job == task else None
        # Its ranks have written nothing yet: it is older than the submission if it is before it.
        submission = self.state.submitted.get(key)
        since = datetime.fromisoformat(submission.at).timestamp() if submission else 0.0
        return newest if last_write(newest.paths) >= since else None

    @cached_property
    def task(self) -> str | None:
        """Slurm's name of the newest task of this cell that is known: submitted, or by hand."""
        submission = None if self.is_local else self.submission
        found = [
            f"{known.job_id}_{self.state.number_in[known.array, self.key]}"
            for known in (self.queued, submission)
            if known is not None
        ]
        if self.newest is not None and (job := job_of(self.newest)):
            found.append(job)
        return max(found, key=lambda job: int(job.partition("_")[0]), default=None)

    @cached_property
    def word(self) -> str:
        """What the accounting says of that task; empty where it says nothing."""
        found = self.queue.accounted.get(self.task or "")
        return found.state if found else ""

    @cached_property
    def cause(self) -> str | None:
        """What the newest attempt says of its failure."""
        return failure_cause(self.newest, self.cell.world_size) if self.newest else None

    @cached_property
    def log_lines(self) -> list[str]:
        """The last lines of the log of the newest job, the last one first; its block's come after.

        A local run has none: its ranks say what went wrong.
        """
        if self.task is None or self.is_local:
            return []
        job, names = self.task.partition("_")[0], [self.key]
        if self.submission is not None and self.is_in_block:
            array = self.submission.array
            names.append((array, self.state.number_in[array, self.key]))
        logs = [job_log(self.state.paths, *name, job) for name in names]
        return [line for log in logs for line in lines_from_the_end(log)]


def _has_ended(attempt: Attempt) -> bool:
    """Whether the ranks have ended for good; interrupted ones go on in the same job."""
    if attempt.result is not None:
        return attempt.result.status != "interrupted"
    return bool(attempt.damage) or attempt.paths.failure(0).exists()
