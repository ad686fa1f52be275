"""Submits a plan, or cells of a run again, and waits for them if asked to."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gnnhpc.core.errors import GnnhpcError, InputError
from gnnhpc.core.python_path import ROOT, search_path_for_children
from gnnhpc.core.run_paths import RunPaths
from gnnhpc.core.settings import check_is_utf8, expand_user
from gnnhpc.experiment.manifest import Cell
from gnnhpc.models.libraries import check_sampler_is_here
from gnnhpc.records.code_snapshot import REPORTING
from jobs.run.launch_again import launch_again
from jobs.run.local_runs import LocalRun, PrintedProgress, Progress, run_cells
from jobs.run.open_run import run_lock
from jobs.run.run_folder import add_to_run_folder, write_run_folder
from jobs.run.run_state import RunState, read_run
from jobs.run.scheduler import Local, Scheduler, Slurm
from jobs.run.states import MAY_RUN
from jobs.run.status import RunStatus, live_jobs, status
from jobs.run.submission import Options, Submission, make_submission
from jobs.run.submission_records import CLUSTERS, Cluster, record_submission
from jobs.slurm.job_array import JobArray
from jobs.slurm.launch import Launch, for_cluster
from jobs.slurm.sbatch import MaybeSubmittedError, check_slurm
from jobs.slurm.sbatch_options import check_local_options
from jobs.slurm.site import Site, changed_site, check_site
from jobs.sweep.plan import Plan

POLL_S = 15.0
"""Pause between two questions about a Slurm run that is waited for."""
_JOB = re.compile(r"^\d+(_\d+)?$")

Notify = Callable[[str], None]
"""Is called with each note for the user."""


def _silent(note: str) -> None:
    """The default of `Notify`."""


@dataclass(frozen=True)
class Submitted:
    """A submission that was made: the jobs' ids, and how many cells failed if it was waited for."""

    submission: Submission
    cluster: str
    jobs: tuple[str, ...]
    """A job id for each array; for a local run the process id of its supervisor."""
    failed: int | None = None
    """Cells that did not end as done; None without waiting."""
    report_job: str | None = None
    """The job that writes the report after the others; None where none was asked for."""

    @property
    def run(self) -> Path:
        return self.submission.run


def submit(
    plan: Plan,
    *,
    cluster: str = "slurm",
    runs: str | Path = "runs",
    site: tuple[str, Site] | None = None,
    settings: Mapping[str, Any] | None = None,
    after: Sequence[str] = (),
    extend: bool = False,
    paired: bool = False,
    live: bool = False,
    wait: bool = False,
    reporting: bool = False,
    progress: Progress | None = None,
    watch: Callable[[RunStatus], None] | None = None,
    notify: Notify = _silent,
) -> Submitted:
    """Write a plan's run folder and submit its cells; returns at once unless `wait`.

    `cluster` is slurm or local. The jobs run the code that the run folder keeps, with `live` the
    checkout. `extend` adds the cells that a run of this name lacks. `settings` replace the site's.
    Jobs begin `after` these runs or jobs have ended. `reporting` writes a report after all cells.
    `progress` is notified of a local run's cells, `watch` of a Slurm run's status, both only with
    `wait`. Raises InputError, with nothing written, for wrong input or where Slurm refuses the
    first array, and MaybeSubmittedError, with the run folder left as it is, where a job may be in
    Slurm.
    """
    run = run_folder_path(plan, runs)
    check_cluster(cluster, run, plan.cells)
    if reporting:
        check_reporting(cluster, wait=wait)
    with contextlib.ExitStack() as held:
        state = None
        if extend and RunPaths(run).manifest.is_file():
            held.enter_context(run_lock(RunPaths(run)))
            state = read_run(run)
        submission, first = prepare(
            plan,
            run,
            state,
            cluster,
            site,
            settings,
            after,
            paired=paired,
            live=live,
            notify=notify,
        )
        if state is None:
            paths = write_run_folder(submission, reporting=reporting)
            held.enter_context(run_lock(paths))
        else:
            paths = state.paths
            add_to_run_folder(submission, state, first)
        try:
            with _noted_if_interrupted(f"{run} stays, with the jobs submitted so far", notify):
                jobs = submit_arrays(submission, scheduler_for(cluster, wait=wait), paths)
        except MaybeSubmittedError:
            raise
        except GnnhpcError:
            if state is None and not paths.submissions.exists():
                # The folder is new, and no job uses it.
                shutil.rmtree(run)
            raise
        report_job = None
        if reporting and cluster == "slurm":
            report_job = _submit_report(paths, submission.launch, jobs, notify)
    submitted = Submitted(submission, cluster, tuple(jobs), report_job=report_job)
    done = wait_for(submitted, progress, watch, notify) if wait else submitted
    if reporting and cluster == "local":
        _write_report(paths, notify)
    return done


def prepare(
    plan: Plan,
    run: Path,
    state: RunState | None,
    cluster: str,
    site: tuple[str, Site] | None,
    settings: Mapping[str, Any] | None,
    after: Sequence[str],
    *,
    paired: bool,
    live: bool,
    notify: Notify,
    ask: bool = True,
) -> tuple[Submission, Launch]:
    """The submission of a plan, and the launch that its run was first submitted with.

    `ask` False asks Slurm neither for limits nor for the jobs to wait for, as for a dry run.
    """
    settings = settings or {}
    if state is None:
        name, chosen = site or ("built-in", Site())
        chosen = changed_site(chosen, settings)
        check_site(chosen, "site")
        if cluster == "local":
            check_local_options(settings)
        launch = for_cluster(Launch(name, chosen, live=live), cluster)
        first = launch
    else:
        again = launch_again(state.paths, cluster, site, settings, live=live)
        launch, first = again.launch, again.first
        for note in again.notes:
            notify(note)
    check_after(after, cluster)
    waits = jobs_to_wait_for(after, notify) if ask else []
    if ask and state is not None and launch.site.max_parallel and cluster == "slurm":
        waits += jobs_of(state, "max_parallel")
    submission = make_submission(plan, run, state, launch, Options(cluster, paired, tuple(waits)))
    for note in submission.notes:
        notify(note)
    return submission, first


def submit_arrays(submission: Submission, scheduler: Scheduler, paths: RunPaths) -> list[str]:
    """Submit every array and record each as soon as it is in; the caller holds the run's lock.

    Raises as the scheduler does, and MaybeSubmittedError where a job cannot be recorded.
    """
    cluster: Cluster = "local" if isinstance(scheduler, Local) else "slurm"

    def record(array: JobArray, job: str) -> None:
        try:
            launch, first = submission.launch, array.first_task
            record_submission(paths, cluster, array.name, array.numbers, job, launch, first)
        except (GnnhpcError, OSError) as error:
            raise MaybeSubmittedError(
                f"{array.label} is job {job}, which could not be recorded: {error}"
            ) from None

    return scheduler.submit(submission, paths, record)


def scheduler_for(cluster: str, *, wait: bool) -> Scheduler:
    return Local(wait=wait) if cluster == "local" else Slurm()


def wait_for(
    submitted: Submitted,
    progress: Progress | None = None,
    watch: Callable[[RunStatus], None] | None = None,
    notify: Notify = _silent,
) -> Submitted:
    """Wait for all cells; a local run is run here."""
    submission, cluster = submitted.submission, submitted.cluster
    what = "its jobs in Slurm" if cluster == "slurm" else "what its cells have done"
    with _noted_if_interrupted(f"{submission.run} stays, with {what}: ask for its status", notify):
        if cluster == "local":
            run = LocalRun.of(submission, RunPaths(submission.run))
            failed = run_cells(run, progress or PrintedProgress())
        else:
            failed = _wait_for_slurm(submission, watch)
    return replace(submitted, failed=failed)


def _wait_for_slurm(submission: Submission, watch: Callable[[RunStatus], None] | None) -> int:
    chosen = {cell.id for cell in submission.cells}
    while True:
        current = status(submission.run)
        if watch is not None:
            watch(current)
        cells = [cell for cell in current.cells if cell.cell in chosen]
        if not any(cell.state in MAY_RUN for cell in cells):
            return sum(cell.state not in ("done", "flagged") for cell in cells)
        time.sleep(POLL_S)


def run_folder_path(plan: Plan, runs: str | Path) -> Path:
    """The path of a plan's run folder; raises InputError for one that is not UTF-8."""
    folder = expand_user(runs, "--runs").absolute()
    check_is_utf8(folder, "--runs")
    return folder / plan.name


def check_cluster(
    cluster: str, run: Path, cells: Sequence[Cell] = (), reason: str | None = None
) -> None:
    """Raises InputError for an unknown cluster, for Slurm where there is none, and for cells that
    cannot run on this machine.

    `reason` says why Slurm is used, where the user did not ask for it.
    """
    if cluster not in CLUSTERS:
        raise InputError("--cluster", None, repr(cluster), ", ".join(CLUSTERS))
    if cluster == "slurm":
        check_slurm(run, reason)
        return
    for cell in cells:
        cell.experiment.model.check_here()
        if cell.experiment.sampling is not None:
            check_sampler_is_here(cell.experiment.sampling.sampler)


def check_reporting(cluster: str, *, wait: bool) -> None:
    """Raises InputError for a local run without --wait, whose report no process would write."""
    if cluster == "local" and not wait:
        raise InputError("--report", None, "--cluster local without --wait", "--wait with it")


def check_after(names: Sequence[str], cluster: str) -> None:
    """Raises InputError for what is neither a run of Slurm nor the id of a job."""
    if names and cluster != "slurm":
        raise InputError("--after", None, f"{names[0]} with --cluster {cluster}", "--cluster slurm")
    for name in names:
        if RunPaths(Path(name)).manifest.is_file():
            if any(one.supervisor_is_alive for one in read_run(name).submissions):
                found = f"{name}, which still runs on this machine"
                raise InputError("--after", None, found, "a run of Slurm, or the id of a job")
        elif not _JOB.match(name):
            raise InputError("--after", None, repr(name), "a run folder, or the id of a job")


def jobs_to_wait_for(names: Sequence[str], notify: Notify) -> list[str]:
    """Ids of the jobs that are named, and of those that a named run has in the queue.

    Raises GnnhpcError where Slurm does not say.
    """
    found: list[str] = []
    for name in names:
        if not RunPaths(Path(name)).manifest.is_file():
            found.append(name)
            continue
        jobs = jobs_of(read_run(name), f"--after {name}")
        if not jobs:
            notify(f"{name} has no job in the queue: nothing to wait for")
        found += jobs
    return found


def jobs_of(state: RunState, asker: str) -> list[str]:
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


def _submit_report(paths: RunPaths, launch: Launch, jobs: list[str], notify: Notify) -> str | None:
    """Submit the job that writes the report; None if Slurm does not take it."""
    if not launch.live and not (paths.code / REPORTING).is_dir():
        notify(f"the run keeps no code that reports; its report job runs the code in {ROOT}")
    try:
        return Slurm().submit_report(paths, launch, jobs)
    except GnnhpcError as error:
        notify(f"no job will write the report: {error}")
        return None


def _write_report(paths: RunPaths, notify: Notify) -> None:
    """Write the report here, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "analysis", "report", str(paths.root)],
        env=os.environ | search_path_for_children(),
        check=False,
    )
    if done.returncode:
        notify(f"the report ended with status {done.returncode}")
