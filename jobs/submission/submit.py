"""Submits a plan to Slurm or to this machine, and waits for its cells if asked to."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from gnnhpc.core.errors import GnnhpcError, InputError
from gnnhpc.core.python_path import search_path_for_children
from gnnhpc.core.run_paths import RunPaths
from gnnhpc.core.settings import check_is_utf8, expand_user
from gnnhpc.models.libraries import check_sampler_is_here
from jobs.run.cell_state import MAY_RUN
from jobs.run.run_state import RunState, read_launch, read_run
from jobs.run.status import RunStatus, live_jobs, status
from jobs.run.submission_records import run_lock
from jobs.slurm.launch import Launch
from jobs.slurm.sbatch import MaybeSubmittedError, check_slurm
from jobs.submission.local_runs import LocalRun, run_cells
from jobs.submission.run_folder import add_to_run_folder, write_run_folder
from jobs.submission.submission import Options, Submission, make_launch, make_submission
from jobs.submission.submit_arrays import Job, submit_arrays, submit_report
from jobs.sweep.plan import Plan

POLL_S = 15.0
"""Pause between two questions about a Slurm run that is waited for."""
_JOB = re.compile(r"^\d+(_\d+)?$")

Notify = Callable[[str], None]
"""Is called with each note for the user."""
Watch = Callable[[RunStatus], None]
"""Is called with the status of a Slurm run that is waited for."""


@dataclass(frozen=True)
class Submitted:
    """A submission that was made, and how many cells failed or are invalid if it was waited for."""

    submission: Submission
    arrays: tuple[Job, ...]
    """What was submitted, with its job's id; for a local run the process id of its supervisor."""
    failed: int | None = None
    """Cells that did not end as done; None without waiting."""
    report_job: str | None = None
    """The job that writes the report after the others; None where none was asked for."""

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


def ignore(note: str) -> None:
    """Drop a note."""


def submit(
    plan: Plan,
    options: Options | None = None,
    *,
    runs: str | Path = "runs",
    extend: bool = False,
    report: bool = False,
    notify: Notify = ignore,
    watch: Watch | None = None,
) -> Submitted:
    """Write a plan's run folder and submit its cells; returns at once unless `options.wait`.

    The jobs run the code that the run folder keeps. `extend` adds the cells that a run of this name
    lacks. `report` writes a report after all cells. Raises InputError, with nothing written, for
    wrong input or where Slurm refuses the first array, and MaybeSubmittedError, with the run folder
    left as it is, where a job may be in Slurm.
    """
    options = options or Options()
    run = run_folder_path(plan, runs)
    check_options(options, report=report)
    check_here(plan, run, options)
    with contextlib.ExitStack() as held:
        state = None
        if extend and RunPaths(run).manifest.is_file():
            held.enter_context(run_lock(RunPaths(run)))
            state = read_run(run)
        launch = make_launch(read_launch(state.paths) if state else Launch(), options)
        waits = jobs_to_wait_for(options, state, launch, notify)
        submission = make_submission(plan, run, state, launch, options, waits)
        for note in submission.notes():
            notify(note)
        if state is None:
            paths = write_run_folder(submission, report=report)
            held.enter_context(run_lock(paths))
        else:
            paths = state.paths
            add_to_run_folder(submission, state)
        try:
            with _noted_if_interrupted(f"{run} stays, with the jobs that are submitted", notify):
                arrays = submit_arrays(submission, paths, wait=options.wait)
        except MaybeSubmittedError:
            raise
        except GnnhpcError:
            if state is None and not paths.submissions.exists():
                # The folder is new, and no job uses it.
                shutil.rmtree(run)
            raise
        in_slurm = submission.cluster == "slurm"
        job = submit_report(submission, paths, arrays, notify) if report and in_slurm else None
    submitted = Submitted(submission, tuple(arrays), report_job=job)
    done = wait_for(submitted, notify, watch) if options.wait else submitted
    if report and not in_slurm:
        _write_report(paths, notify)
    return done


def wait_for(submitted: Submitted, notify: Notify, watch: Watch | None) -> Submitted:
    """Wait for all cells; a local run is run here."""
    submission = submitted.submission
    local = submission.cluster == "local"
    what = "what its cells have done" if local else "its jobs in Slurm"
    with _noted_if_interrupted(f"{submission.run} stays, with {what}: ask for its status", notify):
        if local:
            failed = run_cells(LocalRun.of(submission, RunPaths(submission.run)))
        else:
            failed = _wait_for_slurm(submission, watch)
    return replace(submitted, failed=failed)


def _wait_for_slurm(submission: Submission, watch: Watch | None) -> int:
    chosen = {cell.id for cell in submission.cells}
    while True:
        current = status(submission.run)
        if watch is not None:
            watch(current)
        cells = [cell for cell in current.cells if cell.cell in chosen]
        if not any(cell.state in MAY_RUN for cell in cells):
            return sum(cell.state != "done" for cell in cells)
        time.sleep(POLL_S)


def run_folder_path(plan: Plan, runs: str | Path) -> Path:
    """The path of a plan's run folder; raises InputError for one that is not UTF-8."""
    folder = expand_user(runs, "--runs").absolute()
    check_is_utf8(folder, "--runs")
    return folder / plan.name


def check_options(options: Options, *, report: bool = False) -> None:
    """Raises InputError for options that do not fit together, and for an unknown run or job."""
    if options.cluster == "local" and report and not options.wait:
        raise InputError("--report", None, "--cluster local without --wait", "--wait with it")
    for name in options.after:
        if options.cluster == "local":
            raise InputError("--after", None, f"{name} with --cluster local", "--cluster slurm")
        if RunPaths(Path(name)).manifest.is_file():
            if read_run(name).supervisors:
                found = f"{name}, which still runs on this machine"
                raise InputError("--after", None, found, "a run of Slurm, or the id of a job")
        elif not _JOB.match(name):
            raise InputError("--after", None, repr(name), "a run folder, or the id of a job")


def check_here(plan: Plan, run: Path, options: Options) -> None:
    """Raises InputError where there is no Slurm, and for what cannot run on this machine."""
    if options.cluster == "slurm":
        check_slurm(run)
        return
    for experiment in plan.experiments:
        experiment.model.check_here()
        if experiment.sampling is not None:
            check_sampler_is_here(experiment.sampling.sampler)


def jobs_to_wait_for(
    options: Options, state: RunState | None, launch: Launch, notify: Notify
) -> list[str]:
    """Ids of the jobs of `--after`, and for max_parallel those that the run has in the queue.

    Raises GnnhpcError where Slurm does not say.
    """
    waits: list[str] = []
    for name in options.after:
        is_run = RunPaths(Path(name)).manifest.is_file()
        jobs = _jobs_in_queue(read_run(name), f"--after {name}") if is_run else [name]
        if not jobs:
            notify(f"{name} has no job in the queue: nothing to wait for")
        waits += jobs
    if state is not None and launch.site.max_parallel and options.cluster == "slurm":
        waits += _jobs_in_queue(state, "max_parallel")
    return waits


def _jobs_in_queue(state: RunState, asker: str) -> list[str]:
    """Ids of a run's jobs that wait or run; raises GnnhpcError where Slurm does not say."""
    if not state.submissions:
        return []
    jobs, queue = live_jobs(state)
    if not queue.answered:
        raise GnnhpcError(
            f"{asker}: Slurm does not say which jobs of {state.paths.root} are in its queue "
            f"({queue.error})"
        )
    return jobs


@contextlib.contextmanager
def _noted_if_interrupted(note: str, notify: Notify) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        notify(note)
        raise


def _write_report(paths: RunPaths, notify: Notify) -> None:
    """Write the report here, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "analysis", "report", str(paths.root)],
        env=os.environ | search_path_for_children(),
        check=False,
    )
    if done.returncode:
        notify(f"the report ended with status {done.returncode}")
