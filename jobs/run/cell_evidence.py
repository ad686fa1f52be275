"""What is known about a cell: its attempts, its submission, its job in the queue, its logs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

from gnnhpc.core.run_paths import RunPaths
from gnnhpc.experiment.manifest import Cell
from gnnhpc.records.attempts import Attempt, choose_attempt
from jobs.run.run_state import (
    RunState,
    epoch_seconds,
    failure_cause,
    job_of,
    last_write,
    read_progress,
)
from jobs.slurm.paired_blocks import Key
from jobs.slurm.queue import WAITING_STATES, QueueAnswer, QueuedJob

MEMORY_LINE = re.compile(
    r"(?:slurmstepd\S*|srun): error: .*(?:memory limit|oom[-_ ]?kill|out of memory).*",
    re.IGNORECASE,
)
"""What Slurm prints into a job's log when it, or the kernel, kills a rank for its memory."""
_TAIL_BYTES = 64 * 1024


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
    """Slurm's reason, or the cause of the failure in one line."""
    flags: tuple[str, ...] = ()
    job: str | None = None
    reason: str | None = None
    """Slurm's reason alone, for a cell that waits in its queue."""


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
        self.supervisors = state.supervisors

    def turn(self, key: Key) -> Literal["waits", "runs", "over"]:
        """Whether the job that has a cell in the queue has yet to run it, runs it, or has run it.

        A job runs the cells of its block in order; the one last written to is where it is.
        """
        job = self.queued[key]
        if job.state in WAITING_STATES:
            return "waits"
        number = self.state.blocks.number(job.array, key)
        keys = self.state.blocks.keys(job.array, number)
        tried = {each: self._attempt_by(job.task(number), each) for each in keys}
        attempt = tried[key]
        if attempt is not None and _has_ended(attempt):
            return "over"
        written = {each: last_write(one.paths) if one else 0.0 for each, one in tried.items()}
        return "runs" if key == max(keys, key=lambda each: written[each]) else "waits"

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
        attempts = state.attempts.get(cell.id, [])
        self.newest = attempts[-1] if attempts else None
        self.chosen = choose_attempt(attempts)
        self.submission = state.submitted.get(self.key)
        self.is_local = self.submission is not None and self.submission.cluster == "local"
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
        if self.key in self.jobs.queued:
            return self.jobs.turn(self.key) == "over"
        if self.newest is None or not _has_ended(self.newest):
            return False
        if self.submission is None or job_of(self.newest) == self.task:
            return True
        result = self.newest.result
        ended = epoch_seconds(result.ended_at) if result else last_write(self.newest.paths)
        return ended >= epoch_seconds(self.submission.at)

    @cached_property
    def cause(self) -> str | None:
        """What the newest attempt says of its failure."""
        return failure_cause(self.newest, self.cell.world_size) if self.newest else None

    @cached_property
    def script_error(self) -> str | None:
        """The error with which the newest job's script ended, from the last line of its log."""
        last = next(self._log_lines(), "")
        return last.removeprefix("error: ") if last.startswith("error: ") else None

    @cached_property
    def memory_line(self) -> str | None:
        """What Slurm says of a rank that was killed for its memory; None where none was."""
        line = next((m[0] for line in self._log_lines() if (m := MEMORY_LINE.search(line))), None)
        if line is None and self.word == "OUT_OF_MEMORY":
            line = "Slurm says OUT_OF_MEMORY"
        if line is None:
            return None
        task = self.queue.accounted.get(self.task or "")
        used = task.peak_memory if task else ""
        return f"{line}; a task used {used}, as sacct says" if used else line

    def _log_lines(self) -> Iterator[str]:
        """The last lines of the logs of the newest job, the last one first."""
        if self.task is None:
            return
        job, paths = self.task.partition("_")[0], self.state.paths
        names = [self.key]
        if self.submission is not None and self.submission.array != self.cell.array:
            array = self.submission.array
            names.append((array, self.state.blocks.number(array, self.key)))
        for name in names:
            try:
                with job_log(paths, *name, job).open("rb") as stream:
                    stream.seek(max(0, stream.seek(0, 2) - _TAIL_BYTES))
                    lines = stream.read().decode(errors="replace").splitlines()
            except OSError:
                continue
            yield from reversed(lines)

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


def job_log(paths: RunPaths, array: str, number: int, job: str) -> Path:
    """The log of one array task, or of one cell of a block, which its script opens."""
    return paths.logs / f"{array}-{number}-{job}.log"
