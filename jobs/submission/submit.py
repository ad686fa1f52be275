"""Submits a plan: writes its run folder, submits its arrays, and waits for them if asked to."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from gnnhpc.core.errors import GnnhpcError, InputError, print_note
from gnnhpc.core.run_paths import RunPaths
from gnnhpc.core.settings import expand_user
from jobs.run.run_state import RunState, read_run
from jobs.run.submission_records import run_lock
from jobs.slurm.launch import Launch
from jobs.slurm.paired_blocks import pair_cells
from jobs.slurm.sbatch import MaybeSubmittedError
from jobs.submission.clusters import SCHEDULERS
from jobs.submission.run_folder import write_run_folder
from jobs.submission.scheduler import Job, Watch
from jobs.submission.submission import Options, Submission, make_launch, make_submission
from jobs.sweep.plan import Plan

_JOB = re.compile(r"^\d+(_\d+)?$")


@dataclass(frozen=True)
class Submitted:
    """A submission that was made, and how many cells failed or are invalid if it was waited for."""

    submission: Submission
    arrays: tuple[Job, ...]
    """What was submitted, with its job's id; for a local run the process id of its supervisor."""
    failed: int | None = None
    """Cells that did not end as done; None without waiting."""

    @property
    def run(self) -> Path:
        return self.submission.run

    @property
    def jobs(self) -> tuple[str, ...]:
        return tuple(job for _, job in self.arrays)

    @property
    def tasks_left(self) -> int:
        """Tasks that Slurm did not take, since it limits the jobs of a user."""
        return self.submission.tasks - sum(len(array.tasks) for array, _ in self.arrays)


def submit(
    plan: Plan,
    options: Options | None = None,
    *,
    runs: str | Path = "runs",
    watch: Watch | None = None,
) -> Submitted:
    """Write a plan's run folder and submit its cells; returns at once unless `options.wait`.

    The jobs run the code that the run folder keeps. Raises InputError, with nothing written, for
    wrong input or where Slurm refuses the first array, and MaybeSubmittedError, with the run folder
    left as it is, where a job may be in Slurm.
    """
    options = options or Options()
    submission = prepare_submit(plan, options, runs=runs)
    SCHEDULERS[submission.cluster].check_here(submission.run, plan.experiments)
    paths = write_run_folder(submission)
    try:
        with run_lock(paths):
            submitted = submit_arrays(submission, paths, options)
    except MaybeSubmittedError:
        raise
    except GnnhpcError:
        if not paths.submissions.exists():
            # The folder is new, and no job uses it.
            shutil.rmtree(submission.run)
        raise
    return wait_for(submitted, watch) if options.wait else submitted


def prepare_submit(plan: Plan, options: Options, *, runs: str | Path = "runs") -> Submission:
    """What `submit` submits; nothing is written. Raises InputError for wrong input."""
    folder = expand_user(runs, "--runs").absolute()
    cluster = options.cluster or "slurm"
    scheduler = SCHEDULERS[cluster]
    launch = make_launch(Launch(), options)
    scheduler.check_options(options)
    waits = jobs_of_after(options)
    blocks = pair_cells(plan.cells) if options.paired else {}
    run = folder / plan.name
    submission = make_submission(run, plan.cells, blocks, launch, cluster, waits, plan)
    scheduler.check(submission)
    for note in scheduler.notes(submission):
        print_note(note)
    return submission


def submit_arrays(submission: Submission, paths: RunPaths, options: Options) -> Submitted:
    """Submit every array; the caller holds the run's lock. Raises as `Scheduler.submit`."""
    scheduler = SCHEDULERS[submission.cluster]
    with _noted_if_interrupted(f"{submission.run} stays, with the jobs that are submitted"):
        return Submitted(submission, tuple(scheduler.submit(submission, paths, wait=options.wait)))


def wait_for(submitted: Submitted, watch: Watch | None) -> Submitted:
    """Wait for all cells; a local run is run here."""
    submission = submitted.submission
    note = f"{submission.run} stays, with what its cells have done: ask for its status"
    with _noted_if_interrupted(note):
        failed = SCHEDULERS[submission.cluster].wait(submission, watch)
    return replace(submitted, failed=failed)


def jobs_of_after(options: Options) -> list[str]:
    """Ids of the jobs of `--after`.

    Raises InputError for an unknown run or job, and GnnhpcError where Slurm does not say which jobs
    a run has.
    """
    waits: list[str] = []
    for name in options.after:
        if not RunPaths(Path(name)).manifest.is_file():
            if not _JOB.match(name):
                allowed = "a run folder, or the id of a job"
                raise InputError("--after", None, repr(name), allowed)
            waits.append(name)
            continue
        jobs = _jobs_of_run(read_run(name), name)
        if not jobs:
            print_note(f"{name} has no job in the queue: nothing to wait for")
        waits += jobs
    return waits


def _jobs_of_run(state: RunState, name: str) -> list[str]:
    if state.supervisors:
        found = f"{name}, which still runs on this machine"
        raise InputError("--after", None, found, "a run of Slurm, or the id of a job")
    try:
        return SCHEDULERS["slurm"].query(state)
    except GnnhpcError as error:
        raise GnnhpcError(f"--after {name}: {error}") from None


@contextlib.contextmanager
def _noted_if_interrupted(note: str) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        print_note(note)
        raise
