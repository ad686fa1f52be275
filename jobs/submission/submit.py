"""Submits a plan to Slurm or to this machine, and waits for its cells if asked to."""

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
from gnnhpc.core.python_path import search_path_for_children
from gnnhpc.core.run_paths import RunPaths
from gnnhpc.core.settings import check_is_utf8, expand_user
from gnnhpc.experiment.manifest import Cell
from gnnhpc.models.libraries import check_sampler_is_here
from jobs.run.cell_state import MAY_RUN
from jobs.run.run_state import RunState, read_launch, read_run
from jobs.run.status import RunStatus, live_jobs, status
from jobs.run.submission_records import CLUSTERS, run_lock
from jobs.slurm.launch import Launch, for_cluster
from jobs.slurm.sbatch import MaybeSubmittedError, check_slurm
from jobs.slurm.sbatch_options import check_local_options
from jobs.slurm.site import Site, changed_site, check_site
from jobs.submission.local_cells import LocalRun, Show, print_now, run_cells
from jobs.submission.run_folder import add_to_run_folder, write_run_folder
from jobs.submission.submission import Options, Submission, make_submission
from jobs.submission.submit_arrays import Job, submit_arrays, submit_report
from jobs.sweep.plan import Plan

POLL_S = 15.0
"""Pause between two questions about a Slurm run that is waited for."""
_JOB = re.compile(r"^\d+(_\d+)?$")

Notify = Callable[[str], None]
"""Is called with each note for the user."""
Watch = Callable[[RunStatus], None]
"""Is called with the status of a run that is waited for."""


@dataclass(frozen=True)
class Submitted:
    """A submission that was made, and how many cells failed if it was waited for."""

    submission: Submission
    cluster: str
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
    show: Show = print_now,
    watch: Watch | None = None,
    notify: Notify = lambda note: None,
) -> Submitted:
    """Write a plan's run folder and submit its cells; returns at once unless `wait`.

    `cluster` is slurm or local. The jobs run the code that the run folder keeps, with `live` the
    checkout. `extend` adds the cells that a run of this name lacks. `settings` replace the site's.
    Jobs begin `after` these runs or jobs have ended. `reporting` writes a report after all cells.
    `show` gets a line as cells of a local run start and end, `watch` a Slurm run's status, both
    only with `wait`. Raises InputError, with nothing written, for wrong input or where Slurm
    refuses the first array, and MaybeSubmittedError, with the run folder left as it is, where a job
    may be in Slurm.
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
        submission = prepare(
            plan, run, state, cluster, site, settings or {}, after, paired, live, notify
        )
        if state is None:
            paths = write_run_folder(submission, reporting=reporting)
            held.enter_context(run_lock(paths))
        else:
            paths = state.paths
            add_to_run_folder(submission, state)
        try:
            with _noted_if_interrupted(f"{run} stays, with the jobs that are submitted", notify):
                arrays = submit_arrays(submission, cluster, paths, wait=wait)
        except MaybeSubmittedError:
            raise
        except GnnhpcError:
            if state is None and not paths.submissions.exists():
                # The folder is new, and no job uses it.
                shutil.rmtree(run)
            raise
        report_job = None
        if reporting and cluster == "slurm":
            report_job = submit_report(paths, submission.launch, arrays, notify)
    submitted = Submitted(submission, cluster, tuple(arrays), report_job=report_job)
    done = wait_for(submitted, show, watch, notify) if wait else submitted
    if reporting and cluster == "local":
        _write_report(paths, notify)
    return done


def prepare(
    plan: Plan,
    run: Path,
    state: RunState | None,
    cluster: str,
    site: tuple[str, Site] | None,
    settings: Mapping[str, Any],
    after: Sequence[str],
    paired: bool,
    live: bool,
    notify: Notify,
    *,
    ask: bool = True,
) -> Submission:
    """The submission of a plan; `ask` False does not ask Slurm for the jobs to wait for."""
    if state is None:
        name, chosen = site or ("built-in", Site())
        launch = changed_launch(Launch(name, live=live), (name, chosen), settings, cluster)
    else:
        before = read_launch(state.paths)
        launch = changed_launch(before, site, settings, cluster)
        launch = replace(launch, live=live or before.live)
    check_after(after, cluster)
    waits = jobs_to_wait_for(after, notify) if ask else []
    if ask and state is not None and launch.site.max_parallel and cluster == "slurm":
        waits += jobs_of(state, "max_parallel")
    submission = make_submission(plan, run, state, launch, Options(cluster, paired, tuple(waits)))
    for note in submission.notes:
        notify(note)
    return submission


def changed_launch(
    launch: Launch, site: tuple[str, Site] | None, settings: Mapping[str, Any], cluster: str
) -> Launch:
    """A launch with another site, and with `settings` over it, for this cluster.

    Raises InputError for settings that do not fit.
    """
    name, chosen = site or (launch.site_name, launch.site)
    chosen = changed_site(chosen, settings)
    check_site(chosen, "site")
    if cluster == "local":
        check_local_options(settings)
    return for_cluster(replace(launch, site_name=name, site=chosen), cluster)


def wait_for(
    submitted: Submitted,
    show: Show = print_now,
    watch: Watch | None = None,
    notify: Notify = lambda note: None,
) -> Submitted:
    """Wait for all cells; a local run is run here."""
    submission, cluster = submitted.submission, submitted.cluster
    what = "its jobs in Slurm" if cluster == "slurm" else "what its cells have done"
    with _noted_if_interrupted(f"{submission.run} stays, with {what}: ask for its status", notify):
        if cluster == "local":
            failed = run_cells(LocalRun.of(submission, RunPaths(submission.run)), show)
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
            if read_run(name).supervisors:
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
        is_run = RunPaths(Path(name)).manifest.is_file()
        jobs = jobs_of(read_run(name), f"--after {name}") if is_run else [name]
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


def _write_report(paths: RunPaths, notify: Notify) -> None:
    """Write the report here, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "analysis", "report", str(paths.root)],
        env=os.environ | search_path_for_children(),
        check=False,
    )
    if done.returncode:
        notify(f"the report ended with status {done.returncode}")
