"""Submits plans as new runs, waits for their cells, and cancels the jobs of a run."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gnnhpc.core.errors import GnnhpcError, InputError
from gnnhpc.core.run_paths import RunPaths
from gnnhpc.core.settings import expand_user
from jobs.run.run_state import read_run
from jobs.run.submission_records import Cluster, run_lock
from jobs.slurm.batch_script import Launch
from jobs.slurm.paired_blocks import pair_cells
from jobs.slurm.sbatch import MaybeSubmittedError
from jobs.submit.local_scheduler import Local
from jobs.submit.run_folder import write_run_folder
from jobs.submit.slurm_scheduler import Slurm
from jobs.submit.submission import Job, Options, Submission, make_launch, make_submission
from jobs.sweep.plan import Plan

SCHEDULERS: dict[Cluster, Slurm | Local] = {"slurm": Slurm(), "local": Local()}
"""What submits arrays, says which of their jobs there are, waits for them and cancels them."""
_JOB = re.compile(r"^\d+(_\d+)?$")


@dataclass(frozen=True)
class Submitted:
    """A submission that was made, and how many cells failed or are invalid if it was waited for."""

    submission: Submission
    arrays: tuple[Job, ...]
    """What was submitted, with its job's id; for a local run the process that runs it."""
    failed: int | None = None
    """Cells that did not end as done; None without waiting."""

    @property
    def run(self) -> Path:
        return self.submission.run

    @property
    def tasks_left(self) -> int:
        """Tasks that Slurm did not take, since it limits the jobs of a user."""
        return self.submission.tasks - sum(len(array.tasks) for array, _ in self.arrays)


def submit(
    plan: Plan,
    options: Options | None = None,
    *,
    runs: str | Path = "runs",
) -> Submitted:
    """Write a plan's run folder and submit its cells.

    Returns at once unless `options.wait` or for a local run. The jobs run the code that the run
    folder keeps. Raises InputError, with nothing written, for wrong input or where Slurm refuses
    the first array, and MaybeSubmittedError, with the run folder left as it is, where a job may be
    in Slurm.
    """
    options = options or Options()
    submission = prepare_submit(plan, options, runs=runs)
    paths = write_run_folder(submission)
    try:
        with run_lock(paths):
            jobs = SCHEDULERS[submission.cluster].submit(submission, paths)
    except GnnhpcError as error:
        if not (isinstance(error, MaybeSubmittedError) or paths.submissions.exists()):
            # The folder is new, and no job uses it.
            shutil.rmtree(submission.run)
        raise
    return wait_if_asked(submission, jobs, options)


def prepare_submit(plan: Plan, options: Options, *, runs: str | Path = "runs") -> Submission:
    """What `submit` submits; nothing is written. Raises InputError for wrong input."""
    run = expand_user(runs, "--runs").absolute() / plan.name
    cluster = options.cluster or "slurm"
    blocks = pair_cells(plan.cells) if options.paired else {}
    launch, waits = make_launch(Launch(), options), jobs_of_after(options)
    submission = make_submission(run, plan.cells, blocks, launch, cluster, waits, plan)
    SCHEDULERS[cluster].check(submission, options)
    return submission


def wait_if_asked(submission: Submission, jobs: Sequence[Job], options: Options) -> Submitted:
    """Wait for all cells with `options.wait`; a local run always does, since it is run by that.

    Prints how far they are whenever that has changed.
    """
    failed = None
    if options.wait or submission.cluster == "local":
        failed = SCHEDULERS[submission.cluster].wait(submission)
    return Submitted(submission, tuple(jobs), failed)


def cancel(run: str | Path, *, force: bool = False) -> list[str]:
    """Cancel a run's Slurm arrays and stop its local processes; returns a line for each.

    `force` cancels all recorded jobs where Slurm does not say which of them have ended. Without it
    InputError is raised for such jobs, GnnhpcError if scancel refuses. Then nothing is stopped,
    since Slurm comes first.
    """
    state = read_run(run)
    return [
        f"{one.job} {job}" for one in SCHEDULERS.values() for job in one.cancel(state, force=force)
    ]


def jobs_of_after(options: Options) -> list[str]:
    """Ids of the jobs of `--after`.

    Raises InputError for an unknown run or job, and GnnhpcError where Slurm does not say which jobs
    a run has.
    """
    waits: list[str] = []
    for name in options.after:
        if RunPaths(Path(name)).manifest.is_file():
            waits += SCHEDULERS["slurm"].query(read_run(name))
        elif _JOB.match(name):
            waits.append(name)
        else:
            raise InputError("--after", None, repr(name), "a run folder, or the id of a job")
    return waits
