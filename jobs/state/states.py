"""The states a cell can be in, and what is known of its jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from jobs.cluster.slurm_queue import QueueAnswer, QueuedJob
from jobs.folder.run_blocks import Key, RunBlocks
from jobs.folder.submission_records import SubmissionRecord

STATES = (
    "done",
    "flagged",
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
"""`flagged`: done, but an audit found it invalid. `unknown`: its job may wait or run, and Slurm
does not say. `lost`: ended without result or failure. `missing`: never tried."""
UNKNOWN = "unknown"
LIVE = ("running", "pending")
MAY_RUN = (*LIVE, UNKNOWN)
UNFINISHED = tuple(state for state in STATES if state not in ("done", "flagged", *MAY_RUN))
FAILED = tuple(state for state in UNFINISHED if state != "missing")

Turn = Literal["waits", "runs", "over"]
"""Of a cell in a block that is in the queue."""


@dataclass(frozen=True)
class CellStatus:
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
    """Slurm's reason, or the first failing rank's one-line cause."""
    flags: tuple[str, ...] = ()
    job: str | None = None
    reason: str | None = None
    """Slurm's reason alone, of cells that wait in its queue."""


@dataclass
class JobLookup:
    """What Slurm and the submission records say of a run's jobs; keys are (array, index)."""

    answer: QueueAnswer
    """Of the queue, and of the accounting."""
    silent: bool = False
    """Whether Slurm was asked, or would have to be, and the queue did not answer."""
    queued: dict[Key, QueuedJob] = field(default_factory=dict)
    supervised: dict[Key, SubmissionRecord] = field(default_factory=dict)
    """Submissions to a local supervisor that still runs."""
    submitted: dict[Key, SubmissionRecord] = field(default_factory=dict)
    """The newest submission of each cell."""
    blocks: RunBlocks = field(default_factory=RunBlocks)
    turns: dict[Key, Turn] = field(default_factory=dict)
    """Of the cells of blocks in the queue."""
    heard_elsewhere: Mapping[str, float] = field(default_factory=dict)
    """When the local supervisors of other hosts were last heard from, by process id."""

    def submitted_task(self, key: Key) -> str | None:
        """Slurm's name of the task that the newest submission of a cell gave it."""
        submission = self.submitted.get(key)
        if submission is None or submission.cluster != "slurm":
            return None
        return submission.task(self.blocks.index(submission.array, key))

    def queued_task(self, key: Key) -> str | None:
        """Slurm's name of the task in the queue that runs a cell."""
        job = self.queued.get(key)
        return None if job is None else job.task(self.blocks.index(job.array, key))
