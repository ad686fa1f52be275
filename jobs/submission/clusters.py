"""The scheduler of each cluster that `--cluster` names, and cancelling on all of them."""

from __future__ import annotations

from pathlib import Path

from jobs.run.run_state import read_run
from jobs.run.submission_records import Cluster
from jobs.submission.local import Local
from jobs.submission.scheduler import Scheduler
from jobs.submission.slurm import Slurm

SCHEDULERS: dict[Cluster, Scheduler] = {"slurm": Slurm(), "local": Local()}


def cancel(run: str | Path, *, force: bool = False) -> list[str]:
    """Cancel a run's Slurm arrays and stop its local supervisors; returns a line for each.

    Waits while their ranks save. `force` cancels all recorded jobs where Slurm does not say which
    of them have ended. Without it InputError is raised for such jobs, GnnhpcError if scancel
    refuses. Then nothing is stopped, since Slurm comes first.
    """
    state = read_run(run)
    return [line for one in SCHEDULERS.values() for line in one.cancel(state, force=force)]
