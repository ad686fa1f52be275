"""What is submitted: arrays, scripts and dependencies, decided before anything is written."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gnnhpc.core.errors import InputError
from gnnhpc.experiment.manifest import Cell, assign_indices
from jobs.run.run_state import RunState
from jobs.run.submission_records import Cluster
from jobs.slurm.batch_script import batch_script
from jobs.slurm.job_array import JobArray, block_arrays, cell_arrays, pair_cells
from jobs.slurm.launch import THREADS_VARIABLE, Launch, for_cluster
from jobs.slurm.paired_blocks import Blocks
from jobs.slurm.sbatch_options import check_local_options
from jobs.slurm.site import Site, changed_site, check_site
from jobs.sweep.plan import Plan


@dataclass(frozen=True)
class Options:
    """What a user asks for besides a sweep, or a selection of cells."""

    cluster: Cluster = "slurm"
    """Where the cells run."""
    site: tuple[str, Site] | None = None
    """A site and its name; None for the run's, or the built-in one."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings in place of the site's."""
    after: Sequence[str] = ()
    """Runs, and ids of Slurm jobs, that must end first."""
    paired: bool = False
    """Whether one job runs all cells of a model and repeat, on the same nodes."""
    live: bool = False
    """Whether the jobs run the checkout instead of the code that the run keeps."""
    wait: bool = False
    """Whether to return when every cell has ended."""


@dataclass(frozen=True)
class Submission:
    """Cells that are submitted together, with all that this needs."""

    run: Path
    cluster: Cluster
    cells: tuple[Cell, ...]
    """Cells in the order in which a local run takes them."""
    arrays: tuple[JobArray, ...]
    launch: Launch
    blocks: Blocks = field(default_factory=Blocks)
    """The paired blocks of the run, with those that are new."""
    dependencies: tuple[str, ...] = ()
    """Ids of Slurm jobs that must end before any array begins."""
    plan: Plan | None = None
    """The sweep of new cells; None for a rerun."""

    @property
    def tasks(self) -> int:
        return sum(len(array.tasks) for array in self.arrays)

    @property
    def is_paired(self) -> bool:
        return any(array.is_paired for array in self.arrays)

    @property
    def one_at_a_time(self) -> bool:
        """Whether each array waits for the one before it, so that max_parallel holds for all.

        Slurm counts the running tasks of one array alone.
        """
        most = self.launch.site.max_parallel
        return most is not None and len(self.arrays) > 1 and self.tasks > most

    @property
    def most_core_hours(self) -> float:
        """Tasks x cores x time limit of all arrays: the most that the submission can take."""
        return sum(
            len(array.tasks) * array.resources.cores * array.resources.time_min / 60
            for array in self.arrays
        )

    def script(self, array: JobArray) -> str:
        """The text of an array's batch script."""
        return batch_script(array, self.run, self.launch)

    def notes(self) -> Iterator[str]:
        """What a user should know about the jobs in Slurm."""
        if self.cluster == "local":
            return
        launch, site = self.launch, self.launch.site
        for array in self.arrays:
            if array.first_task:
                what = "block" if array.is_paired else "cell"
                yield (
                    f"{array.label} has {what}s {array.numbers[0]} to {array.numbers[-1]} of "
                    f"{array.name}, since a job array has at most {launch.array_limit} tasks: task "
                    f"t is {what} {array.first_task} + t"
                )
        threads, cpus = os.environ.get(THREADS_VARIABLE), site.cpus_per_task
        if threads not in (None, "", str(cpus)):
            yield f"jobs inherit {THREADS_VARIABLE}={threads} instead of the site's {cpus} threads"
        if not (site.python or site.activate or site.container) and launch.python != sys.executable:
            yield f"runs {launch.python}, as the run was submitted, not {sys.executable}"

    def advice(self) -> Iterator[str]:
        """What would make the measurements sounder."""
        if self.cluster == "local":
            return
        if not self.is_paired and len({cell.experiment.layout for cell in self.cells}) > 1:
            yield (
                "layouts run in jobs of their own, on other nodes and at other times; --paired "
                "runs all layouts of a repeat in one job, on the same nodes"
            )
        if not self.launch.site.exclusive:
            yield "jobs may share nodes, which disturbs times; site key: exclusive: true"


def make_submission(
    plan: Plan,
    run: Path,
    state: RunState | None,
    launch: Launch,
    options: Options,
    waits: Sequence[str] = (),
) -> Submission:
    """The submission of a plan: of a new run, or of the cells that the run of `state` lacks.

    A pure function, which `--dry-run` prints; the jobs `waits` must end before it begins. Raises
    InputError for a plan that adds no cell, for --paired on a run whose first cells were submitted
    without it, and for a time limit that the partition does not allow.
    """
    cells: Sequence[Cell] = plan.cells
    before, paired = Blocks(), options.paired
    if state is not None:
        before, cells = state.blocks, assign_indices(plan.experiments, plan.data_root, state.cells)
        if not cells:
            found = f"no cell that {run} does not have"
            raise InputError(plan.source, "grids", found, "a larger spec, or rerun")
        if paired and not before.tables:
            allowed = "--extend without it, or another --name"
            raise InputError("--paired", None, f"{run}, which was submitted without it", allowed)
        paired = bool(before.tables)
    limits = launch.site, launch.array_limit
    new = pair_cells(cells, before.count) if paired else {}
    arrays = block_arrays(new, *limits) if paired else cell_arrays(cells, *limits)
    blocks = before.with_tasks(new)
    submission = Submission(
        run, options.cluster, tuple(cells), tuple(arrays), launch, blocks, tuple(waits), plan
    )
    _check_time_limits(submission)
    return submission


def resubmission(
    state: RunState,
    cells: Sequence[Cell],
    launch: Launch,
    options: Options,
    waits: Sequence[str],
) -> Submission:
    """The submission of cells that a run has; with `paired` of the whole blocks that hold them."""
    limits = launch.site, launch.array_limit
    if options.paired:
        blocks = state.blocks.with_cells(cells, state.cells)
        cells = [cell for tasks in blocks.values() for task in tasks for cell in task.cells]
        arrays = block_arrays(blocks, *limits)
    else:
        arrays = cell_arrays(cells, *limits)
    submission = Submission(
        run=state.paths.root,
        cluster=options.cluster,
        cells=tuple(cells),
        arrays=tuple(arrays),
        launch=launch,
        blocks=state.blocks,
        dependencies=tuple(waits),
    )
    _check_time_limits(submission)
    return submission


def make_launch(before: Launch, options: Options) -> Launch:
    """How the jobs start their ranks: as `before`, except for the options.

    Raises InputError for settings that do not fit.
    """
    name, site = options.site or (before.site_name, before.site)
    site = changed_site(site, options.settings)
    check_site(site, "site")
    if options.cluster == "local":
        check_local_options(options.settings)
    launch = replace(before, site_name=name, site=site, live=options.live or before.live)
    return for_cluster(launch, options.cluster)


def _check_time_limits(submission: Submission) -> None:
    """Raises InputError for an array that its partition would leave waiting without end."""
    site, most = submission.launch.site, submission.launch.longest_min
    for array in submission.arrays:
        needed = array.resources.time_min
        if submission.cluster == "local" or most is None or needed <= most:
            continue
        allowed, count = f"at most {most} minutes in this partition", array.most_cells
        if not array.is_paired:
            raise InputError("site", "time", site.time, allowed)
        found = f"{site.time}, {needed} minutes for the {count} cells of a block of {array.name}"
        each = most // count
        fits = each * 60 > site.signal
        allowed += f": time {each} (minutes of a cell)" if fits else ": a sweep with smaller blocks"
        raise InputError("site", "time", found, f"{allowed}, or no --paired")


def all_arrays(cells: Sequence[Cell], blocks: Blocks, launch: Launch) -> list[JobArray]:
    """The arrays of all these cells, and those of all their blocks, for scripts by hand."""
    limits = launch.site, launch.array_limit
    chosen = [cell for cell in cells if (cell.array, cell.index) in blocks.block_of]
    return cell_arrays(cells, *limits) + block_arrays(blocks.with_cells(chosen, cells), *limits)
