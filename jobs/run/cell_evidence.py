"""What is known about a cell: its attempts, its submission, its job in the queue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Literal

from gnnhpc.experiment.manifest import Cell
from gnnhpc.records.attempts import Attempt, choose_attempt
from jobs.run.attempt_progress import (
    epoch_seconds,
    failure_cause,
    job_of,
    last_write,
    read_progress,
)
from jobs.run.blocks import Key
from jobs.run.run_state import RunState
from jobs.run.states import CellState
from jobs.run.submission_records import SubmissionRecord
from jobs.slurm.queue import WAITING_STATES, QueueAnswer, QueuedJob

Turn = Literal["waits", "runs", "over"]
"""Whether the job that has a cell in the queue has yet to run it, runs it, or has run it."""


class JobsOfCells:
    """The jobs in the queue by cell, and which of its cells each of them runs now."""

    def __init__(self, state: RunState, queue: QueueAnswer) -> None:
        self.state = state
        self.queued: dict[Key, QueuedJob] = {}
        # The newest job counts: a cell may be measured again while its old block still runs.
        for job in sorted(queue.jobs, key=lambda job: int(job.job_id)):
            for number in job.numbers():
                for key in state.blocks.keys(job.array, number):
                    self.queued[key] = job
        self._ids = {(cell.array, cell.index): cell.id for cell in state.cells}
        self._turns: dict[str, dict[Key, Turn]] = {}
        self.supervisors = {one.job_id for one in state.submissions if one.supervisor_is_alive}

    def turn(self, key: Key) -> Turn:
        """Whether the job in the queue has yet to run this cell."""
        job = self.queued[key]
        number = self.state.blocks.number(job.array, key)
        task = job.task(number)
        if task not in self._turns:
            self._turns[task] = self._turns_of(job, number)
        return self._turns[task].get(key, "over")

    def _turns_of(self, job: QueuedJob, number: int) -> dict[Key, Turn]:
        """A job runs the cells of its block in order: the one last written to is where it is."""
        keys = self.state.blocks.keys(job.array, number)
        if job.state in WAITING_STATES:
            return dict.fromkeys(keys, "waits")
        tried = [self._attempt_by(job.task(number), key) for key in keys]
        written = [last_write(attempt.paths) if attempt else 0.0 for attempt in tried]
        now = written.index(max(written))
        turns: dict[Key, Turn] = {}
        for place, (key, attempt) in enumerate(zip(keys, tried, strict=True)):
            if place > now:
                turns[key] = "over" if attempt is not None and attempt.valid else "waits"
            elif place < now:
                turns[key] = "over"
            else:
                turns[key] = "over" if attempt is not None and _has_ended(attempt) else "runs"
        return turns

    def _attempt_by(self, task: str, key: Key) -> Attempt | None:
        """The newest attempt at a cell, if this task made it."""
        attempts = self.state.attempts.get(self._ids.get(key, ""))
        if not attempts:
            return None
        newest = attempts[-1]
        job = job_of(newest)
        if job is not None:
            return newest if job == task else None
        # Its ranks have written nothing yet: it is older than the job if it is before it.
        submission = self.state.submitted.get(key)
        since = 0.0 if submission is None else epoch_seconds(submission.at)
        return newest if last_write(newest.paths) >= since else None


def _has_ended(attempt: Attempt) -> bool:
    """Whether the ranks have ended for good; interrupted ones go on in the same job."""
    if attempt.result is not None:
        return attempt.result.status != "interrupted"
    return bool(attempt.damage) or attempt.paths.failure(0).exists()


class Evidence:
    """All that is known about one cell."""

    def __init__(self, cell: Cell, state: RunState, queue: QueueAnswer, jobs: JobsOfCells) -> None:
        self.cell, self.state, self.queue, self.jobs = cell, state, queue, jobs
        self.key = (cell.array, cell.index)
        self.attempts: Sequence[Attempt] = state.attempts.get(cell.id, [])
        self.newest = self.attempts[-1] if self.attempts else None
        self.chosen = choose_attempt(self.attempts)
        self.submission: SubmissionRecord | None = state.submitted.get(self.key)
        self.queued = jobs.queued.get(self.key)
        self.base = CellState(
            cell=cell.id,
            array=cell.array,
            index=cell.index,
            state="missing",
            attempts=len(self.attempts),
            attempt=self.newest.number if self.newest else None,
            steps=cell.train_steps,
        )

    @cached_property
    def task(self) -> str | None:
        """Slurm's name of the newest task of this cell that is known: submitted, or by hand."""
        found = []
        if self.submission is not None and self.submission.cluster == "slurm":
            number = self.state.blocks.number(self.submission.array, self.key)
            found.append(self.submission.task(number))
        if self.newest is not None and (job := job_of(self.newest)):
            found.append(job)
        return max(found, key=job_number, default=None)

    @cached_property
    def word(self) -> str:
        """What the accounting says of that task; empty where it says nothing."""
        return self.queue.accounted.get(self.task or "", "")

    @cached_property
    def has_ended(self) -> bool:
        """Whether the newest submission of this cell has its result."""
        if self.queued is not None:
            return self.jobs.turn(self.key) == "over"
        if self.newest is None or not _has_ended(self.newest):
            return False
        if self.submission is None or job_of(self.newest) == self.task:
            return True
        result = self.newest.result
        ended = epoch_seconds(result.ended_at) if result else last_write(self.newest.paths)
        return ended >= epoch_seconds(self.submission.at)

    @property
    def cause(self) -> str | None:
        return failure_cause(self.newest, self.cell.world_size) if self.newest else None

    def running(self, detail: str | None = None) -> CellState:
        """`running`, with the progress of the newest attempt."""
        if self.newest is None or self.newest.result is not None:
            return replace(self.base, state="running", detail=detail or "starting", job=self.task)
        progress = read_progress(self.newest.paths)
        left = max(0, self.cell.train_steps - progress.step)
        return replace(
            self.base,
            state="running",
            step=progress.step,
            step_s=progress.step_s,
            eta_s=None if progress.step_s is None else left * progress.step_s,
            detail=detail or (None if progress.step else "starting"),
            job=self.task,
        )


def job_number(job: str) -> int:
    """The number in `17_3` or `17`, which Slurm counts up; 0 for another name."""
    head = job.partition("_")[0]
    return int(head) if head.isdigit() else 0
