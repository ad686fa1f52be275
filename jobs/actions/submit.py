"""Writes a plan's run folder and submits its cells."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gnnhpc.core.cli_support import as_typed
from gnnhpc.core.errors import GnnhpcError, InputError
from gnnhpc.core.index_list import format_indices
from gnnhpc.core.user_paths import check_is_utf8, expand_user
from gnnhpc.experiment.manifest import Cell, read_manifest
from gnnhpc.models.libraries import check_sampler_is_here
from gnnhpc.records.run_paths import RunPaths
from jobs.actions.after import jobs_of_run, jobs_to_wait_for
from jobs.actions.local_cells import LocalCell, LocalLimits, ProgressListener
from jobs.actions.local_executor import run_local_cells, send_cells, start_supervisor
from jobs.actions.local_progress import NoProgress
from jobs.actions.local_turns import check_turns
from jobs.actions.reporting import check_reporting, start_report_job, write_report
from jobs.cluster.array_limit import check_job_count, query_limits
from jobs.cluster.arrays import (
    Array,
    Resources,
    after_jobs,
    group_by_array,
    take_turns,
)
from jobs.cluster.blocks import BlockArray, arrays_of, in_parts, needs_of
from jobs.cluster.core_hours import MostCoreHours, most_core_hours
from jobs.cluster.launch import Launch, limited, resolved
from jobs.cluster.sbatch_options import check_used_here
from jobs.cluster.sbatch_retries import MaybeSubmittedError
from jobs.cluster.site import Site, changed_site, check_site
from jobs.cluster.slurm_submit import check_slurm_is_usable, submit_array
from jobs.folder.locked_files import run_lock
from jobs.folder.recorded_launch import Relaunch, relaunch
from jobs.folder.run_blocks import read_blocks
from jobs.folder.run_folder import create_run_folder, extend_run_folder
from jobs.folder.submission_records import CLUSTERS, read_submissions, record_submission
from jobs.spec.planning import Plan
from jobs.state.run_status import RunStatus, status
from jobs.state.states import MAY_RUN

SLURM_POLL_S = 15.0
"""Seconds between two looks at the status of a Slurm run that is waited for."""


@dataclass(frozen=True)
class Submission:
    """What was submitted: the jobs' ids, and how many cells failed if that was waited for."""

    run: Path
    cluster: str
    jobs: tuple[tuple[str, str, str], ...]
    """Job id, array, indices; on a local cluster the id of the supervising process."""
    cells: tuple[Cell, ...]
    failed: int | None = None
    """Cells that did not end as done; None without `wait`."""
    most: MostCoreHours | None = None
    """What the cells may take in Slurm; None on a local cluster."""
    report_job: str | None = None
    """The job that writes the report once the others have ended; None where none was asked for."""


def submit(
    plan: Plan,
    *,
    cluster: str = "slurm",
    runs: str | Path = "runs",
    site: tuple[str, Site] | None = None,
    settings: Mapping[str, Any] | None = None,
    after: Sequence[str] = (),
    extend_run: bool = False,
    paired: bool = False,
    live: bool = False,
    wait: bool = False,
    reporting: bool = False,
    report: ProgressListener | None = None,
    watch: Callable[[RunStatus], None] | None = None,
    tell: Callable[[str], None] | None = None,
) -> Submission:
    """Write the run folder and submit its cells; returns at once unless `wait`.

    The run keeps the code that this process runs, and its jobs run that; `live` makes them run the
    checkout. `extend_run` adds the cells that a run of this name does not have and submits these
    alone, with the site and the code that the run was submitted with, unless told otherwise.
    `paired` submits blocks, each of all cells of a model and repeat, and so does what is added to
    a run that was. `settings` stand in place of the site's own; Slurm's jobs begin `after` these
    have ended, which are run folders or job ids. `reporting` has a report written once the cells
    have ended, by one more job or, after a local run that is waited for, here. `report` is told of
    a local run's cells, `watch` is given a Slurm run's status every 15 seconds, both only with
    `wait`; `tell` hears what is not as the run was submitted. Raises InputError, with nothing
    written, if the folder cannot be made or Slurm refuses the job, and MaybeSubmittedError, with
    the run folder left as it is, where a job may be in Slurm.
    """
    run = run_folder_path(plan, runs)
    check_cluster(cluster, run, plan.cells)
    if reporting:
        check_reporting(cluster, wait=wait)
    fresh = not (extend_run and has_run(run))
    how = choose_launch(run, cluster, site, settings, extends=not fresh, live=live)
    how.tell(tell)
    paired = is_paired(run, extends=not fresh, asked=paired)
    for array in group_by_array(plan.cells):
        needs_of(array, how.launch.site)
    if paired and cluster == "slurm" and tell is not None:
        for note in _notes_on_blocks(plan.cells, how.launch):
            tell(note)
    waits = jobs_to_wait_for(after, cluster, tell)
    paths = RunPaths(run)
    if fresh:
        create_run_folder(plan, run, how.launch, reporting=reporting, paired=paired)
    with run_lock(paths):
        new = plan if fresh else extend_run_folder(plan, paths, how.launch, how.submitted)
        stays = f"{run} stays, with the jobs submitted so far: ask for its status"
        try:
            with _told_if_interrupted(stays, tell):
                started = start_cells(
                    paths, new.cells, cluster, how.launch, wait, waits, paired=paired
                )
        except MaybeSubmittedError:
            raise
        except GnnhpcError:
            if fresh and not read_submissions(paths):
                # The folder is new and no job uses it.
                shutil.rmtree(run)
            raise
        report_job = None
        if reporting and cluster == "slurm":
            ids = [job for job, _, _ in started.jobs]
            report_job = start_report_job(paths, ids, how.launch, tell)
    done = started.finish(report, watch, tell)
    if reporting and cluster == "local":
        write_report(paths, tell)
    return replace(done, report_job=report_job)


@contextlib.contextmanager
def _told_if_interrupted(words: str, tell: Callable[[str], None] | None) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        if tell is not None:
            tell(words)
        raise


def _notes_on_blocks(cells: Sequence[Cell], launch: Launch) -> Iterator[str]:
    """How long a block may take, which a partition may not allow: Slurm then lets it wait."""
    for array in arrays_of(cells, launch.array_limit, paired=True):
        if isinstance(array, BlockArray):
            most = max(len(block.cells) for block in array.blocks)
            asked, each = needs_of(array, launch.site).time_min, launch.site.time_min
            yield (
                f"a block of {array.label} asks for {asked} minutes, {each} for each of {most} "
                "cells; where a partition allows less, it waits without end"
            )


def run_folder_path(plan: Plan, runs: str | Path) -> Path:
    """The path of a plan's run folder; raises InputError for one that is no UTF-8."""
    folder = expand_user(runs, "--runs").absolute()
    check_is_utf8(folder, "--runs")
    return folder / plan.name


def has_run(run: Path) -> bool:
    """Whether there is a run to extend."""
    return RunPaths(run).manifest.is_file()


def is_paired(run: Path, *, extends: bool, asked: bool) -> bool:
    """Whether cells are submitted in blocks: a run's later cells as its first ones were.

    Raises InputError where that is `asked` of a run whose first cells were not.
    """
    if not extends:
        return asked
    has_blocks = bool(read_blocks(RunPaths(run)).tables)
    if asked and not has_blocks:
        allowed = "--extend without it, or another --name"
        raise InputError("--paired", None, f"{run}, which was submitted without it", allowed)
    return has_blocks


def choose_launch(
    run: Path,
    cluster: str,
    site: tuple[str, Site] | None,
    settings: Mapping[str, Any] | None = None,
    *,
    extends: bool,
    live: bool,
) -> Relaunch:
    """How cells are started: of a new run with this site, else the built-in one.

    `settings` stand in place of the site's own. Raises InputError for settings that do not fit.
    """
    if extends:
        return relaunch(RunPaths(run), cluster, site, settings, live=live)
    name, chosen = site or ("built-in", Site())
    chosen = changed_site(chosen, settings or {})
    check_site(chosen, "site")
    if cluster == "local":
        check_used_here(settings or {})
    launch = limited(Launch(name, resolved(chosen, cluster), live=live), cluster)
    return Relaunch(launch, launch, ())


def check_cluster(
    cluster: str, run: Path, cells: Sequence[Cell] = (), chosen: str | None = None
) -> None:
    """Raises InputError for an unknown cluster, for Slurm where there is none, and for cells that
    cannot run on this machine where it is to run them. `chosen` says why it is to be Slurm, where
    nobody asked for it.
    """
    if cluster not in CLUSTERS:
        raise InputError("--cluster", None, repr(cluster), ", ".join(CLUSTERS))
    if cluster == "slurm":
        check_slurm_is_usable(run, chosen)
    else:
        check_turns()
        for cell in cells:
            cell.experiment.model.check_here()
            if cell.experiment.sampling is not None:
                check_sampler_is_here(cell.experiment.sampling.sampler)


@dataclass(frozen=True)
class StartedCells:
    """Cells that have been submitted, with what is needed to wait for them."""

    paths: RunPaths
    cluster: str
    jobs: tuple[tuple[str, str, str], ...]
    cells: tuple[Cell, ...]
    limits: LocalLimits
    wait: bool
    most: MostCoreHours | None = None

    def finish(
        self,
        report: ProgressListener | None = None,
        watch: Callable[[RunStatus], None] | None = None,
        tell: Callable[[str], None] | None = None,
    ) -> Submission:
        """Wait for the cells if `wait` is set; a waited-for local run is run here."""
        failed = None
        what = "its jobs in Slurm" if self.cluster == "slurm" else "what its cells have done"
        with _told_if_interrupted(
            f"{self.paths.root} stays, with {what}: ask for its status", tell
        ):
            if self.wait and self.cluster == "local":
                cells = [LocalCell.from_cell(cell) for cell in self.cells]
                ended = run_local_cells(self.paths, cells, self.limits, report or NoProgress())
                failed = sum(not one.done for one in ended)
            elif self.wait:
                failed = _wait_for_slurm(self.paths, self.cells, watch)
        return Submission(self.paths.root, self.cluster, self.jobs, self.cells, failed, self.most)


def start_cells(
    paths: RunPaths,
    cells: Sequence[Cell],
    cluster: str,
    launch: Launch,
    wait: bool,
    after: Sequence[str] = (),
    *,
    paired: bool = False,
) -> StartedCells:
    """Submit cells of an existing run, to begin after these jobs; the caller holds its lock.

    `paired`: the whole blocks that hold them.
    """
    arrays: Sequence[Array | BlockArray] = group_by_array(cells, launch.array_limit)
    if paired:
        blocks = read_blocks(paths).arrays_with(cells, read_manifest(paths.manifest))
        arrays = in_parts(blocks, launch.array_limit)
        cells = [cell for array in arrays for cell in array.cells]
    if cluster == "local":
        return _start_local(paths, cells, launch, wait)
    jobs: list[tuple[str, str, str]] = []
    asked: list[tuple[int, Resources]] = []
    sizes = [len(array.tasks) for array in arrays]
    check_job_count(sum(sizes), query_limits(), "blocks" if paired else "cells")
    submissions = read_submissions(paths)
    recorded = {submission.job_id for submission in submissions}
    most = launch.site.max_parallel
    waits = [*after, *(jobs_of_run(paths, "max_parallel") if most and submissions else ())]
    for array in arrays:
        needs = after_jobs(needs_of(array, launch.site), waits)
        try:
            job = submit_array(paths, array, needs, launch, recorded)
        except GnnhpcError as error:
            if not jobs:
                raise
            done = ", ".join(f"{name} as {number}" for number, name, _ in jobs)
            flags = "--missing --paired" if paired else "--missing"
            raise GnnhpcError(
                f"{error}; submitted before that: {done}; "
                f"the others: {as_typed('jobs', 'rerun')} {paths.root} {flags}"
            ) from None
        recorded.add(job)
        if take_turns(sizes, most):
            waits = [job]
        jobs.append((job, array.name, format_indices(array.indices)))
        asked.append((len(array.tasks), needs))
        _record_job(paths, array, job, launch)
    limits, cost = LocalLimits.of_launch(launch, paths), most_core_hours(asked, launch)
    return StartedCells(paths, cluster, tuple(jobs), tuple(cells), limits, wait, cost)


def _record_job(paths: RunPaths, array: Array | BlockArray, job: str, launch: Launch) -> None:
    """Record a job of Slurm's; raises MaybeSubmittedError if the file system refuses that."""
    try:
        record_submission(paths, "slurm", array.name, array.indices, job, launch, array.offset)
    except (GnnhpcError, OSError) as error:
        raise MaybeSubmittedError(
            f"{array.label} is Slurm job {job}, which could not be recorded: {error}"
        ) from None


def _start_local(
    paths: RunPaths, cells: Sequence[Cell], launch: Launch, wait: bool
) -> StartedCells:
    limits = LocalLimits.of_launch(launch, paths)
    local_cells = [LocalCell.from_cell(cell) for cell in cells]
    process = None if wait else start_supervisor(paths)
    pid = str(os.getpid() if process is None else process.pid)
    arrays = group_by_array(cells)
    for array in arrays:
        record_submission(paths, "local", array.name, array.indices, pid, launch)
    if process is not None:
        send_cells(process, local_cells, limits)
    jobs = tuple((pid, array.name, format_indices(array.indices)) for array in arrays)
    return StartedCells(paths, "local", jobs, tuple(cells), limits, wait)


def _wait_for_slurm(
    paths: RunPaths, cells: Sequence[Cell], watch: Callable[[RunStatus], None] | None
) -> int:
    wanted = {cell.id for cell in cells}
    while True:
        current = status(paths.root)
        if watch is not None:
            watch(current)
        mine = [cell for cell in current.cells if cell.cell in wanted]
        if not any(cell.state in MAY_RUN for cell in mine):
            return sum(cell.state not in ("done", "flagged") for cell in mine)
        time.sleep(SLURM_POLL_S)
