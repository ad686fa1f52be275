"""What is submitted: arrays, scripts and dependencies, decided before anything is written."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gnnhpc.core.run_paths import RunPaths
from gnnhpc.experiment.manifest import Cell
from jobs.run.submission_records import Cluster
from jobs.slurm.batch_script import Launch, batch_script
from jobs.slurm.job_array import JobArray, Task, job_arrays, tasks_of_cells
from jobs.slurm.paired_blocks import block_table
from jobs.slurm.site_settings import Site, changed_site
from jobs.sweep.plan import Plan

Job = tuple[JobArray, str]
"""An array, or a portion of it, with the id of its job; locally this process's id."""


@dataclass(frozen=True)
class Options:
    """What a user asks for besides a sweep, or a selection of cells."""

    cluster: Cluster | None = None
    """Where the cells run; None for where the run was submitted, and Slurm for a new one."""
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
    """Whether to return when every cell has ended; a local run always does."""


@dataclass(frozen=True)
class Submission:
    """Cells that are submitted together, with all that this needs."""

    run: Path
    cluster: Cluster
    cells: tuple[Cell, ...]
    """Cells in the order in which a local run takes them: that of the blocks, where there are."""
    arrays: tuple[JobArray, ...]
    launch: Launch
    dependencies: tuple[str, ...] = ()
    """Ids of Slurm jobs that must end before any array begins."""
    plan: Plan | None = None
    """The sweep of a new run; None for a rerun."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Texts of batch scripts and of the tables of blocks, by the names that a run has for them."""

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


def make_submission(
    run: Path,
    cells: Sequence[Cell],
    blocks: Mapping[str, list[Task]],
    launch: Launch,
    cluster: Cluster,
    waits: Sequence[str],
    plan: Plan | None = None,
) -> Submission:
    """The submission of these cells, or of whole blocks, after the jobs `waits` have ended.

    A pure function, which `--dry-run` prints. Raises InputError as `resources_for` does.
    """
    arrays = job_arrays(blocks or tasks_of_cells(cells), launch.site)
    # Scripts of single cells are for users who submit some of a paired run by hand.
    by_hand = job_arrays(tasks_of_cells(cells), launch.site) if blocks and plan else []
    paths = RunPaths(run)
    files = {
        paths.script(array.name).name: batch_script(array, run, launch)
        for array in (*arrays, *by_hand)
    }
    for array in arrays:
        if array.is_paired:
            files[paths.block_table(array.name).name] = block_table(array)
    return Submission(
        run=run,
        cluster=cluster,
        cells=_in_blocks(blocks) if blocks else tuple(cells),
        arrays=tuple(arrays),
        launch=launch,
        dependencies=tuple(waits),
        plan=plan,
        files=files,
    )


def make_launch(before: Launch, options: Options) -> Launch:
    """How the jobs start their ranks: as `before`, except for the options.

    Raises InputError for settings that do not fit.
    """
    name, site = options.site or (before.site_name, before.site)
    site = changed_site(site, options.settings)
    return replace(before, site_name=name, site=site, live=options.live or before.live)


def _in_blocks(blocks: Mapping[str, list[Task]]) -> tuple[Cell, ...]:
    """The cells of all blocks, those of the first block of each model before any second one."""
    tasks = [task for tasks in blocks.values() for task in tasks]
    ordered = sorted(tasks, key=operator.attrgetter("number"))
    return tuple(cell for task in ordered for cell in task.cells)
