"""What starts and stops the cells of a run: Slurm, or this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from gnnhpc.core.run_paths import RunPaths
from jobs.run.run_state import RunState
from jobs.run.status import RunStatus
from jobs.slurm.job_array import JobArray
from jobs.submit.submission import Options, Submission

Job = tuple[JobArray, str]
"""An array, or a portion of it, with the id of its job; locally this process's id."""
Watch = Callable[[RunStatus], None]
"""Is called with the status of a Slurm run that is waited for."""


class Scheduler(Protocol):
    """Submits arrays, asks for their jobs and cancels them."""

    job: str
    """What a job is called where its id is printed."""

    def check(self, submission: Submission, options: Options) -> None:
        """Raises InputError for what would never start, and for options without a meaning."""

    def summary(self, submission: Submission) -> Iterator[str]:
        """What the submission may cost, and what would make the measurements sounder."""
        return iter(())

    def submit(self, submission: Submission, paths: RunPaths) -> list[Job]:
        """Submit every array and record each as soon as it is in; the caller holds the run's lock.

        Raises InputError where this machine cannot submit, or the first array is refused,
        GnnhpcError for a later array, and MaybeSubmittedError where that remains unknown, or where
        a job cannot be recorded.
        """

    def wait(self, submission: Submission, watch: Watch | None) -> int:
        """Return when every cell has ended: how many did not end as done."""

    def query(self, state: RunState) -> Sequence[str]:
        """Ids of the run's jobs that wait or run; raises GnnhpcError where that is not known."""

    def cancel(self, state: RunState, *, force: bool) -> Sequence[str]:
        """Cancel the run's jobs; returns their ids. Raises as `jobs.submit.submit.cancel`."""
