"""What is submitted: arrays, scripts and dependencies, decided before anything is written."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gnnhpc.core.errors import InputError
from gnnhpc.experiment.manifest import Cell, assign_indices
from jobs.run.blocks import Blocks
from jobs.run.run_state import RunState
from jobs.slurm.batch_script import batch_script
from jobs.slurm.job_array import JobArray, Task, block_arrays, cell_arrays, pair_cells
from jobs.slurm.launch import THREADS_VARIABLE, Launch
from jobs.sweep.plan import Plan


@dataclass(frozen=True)
class Options:
    """What a user asks for besides cells and site."""

    cluster: str = "slurm"
    paired: bool = False
    after: tuple[str, ...] = ()
    """Ids of Slurm jobs that must end first."""


@dataclass(frozen=True)
class Submission:
    """Cells that are submitted together, with all that this needs."""

    run: Path
    cells: tuple[Cell, ...]
    """In the order in which a local run runs them."""
    arrays: tuple[JobArray, ...]
    launch: Launch
    dependencies: tuple[str, ...] = ()
    """Ids of Slurm jobs that must end before any array begins."""
    one_at_a_time: bool = False
    """Whether each array waits for the one before it, so that max_parallel holds for all."""
    notes: tuple[str, ...] = ()
    """What a user should know, such as how the launch differs from the run's first."""
    plan: Plan | None = None
    """The sweep of new cells; None for a rerun."""
    new_blocks: dict[str, list[Task]] = field(default_factory=dict)
    """Blocks that the run does not have yet, by the name of their array."""

    @property
    def tasks(self) -> int:
        return sum(len(array.tasks) for array in self.arrays)

    def script(self, array: JobArray) -> str:
        """The text of an array's batch script."""
        return batch_script(array, self.run, self.launch)

    @property
    def most_core_hours(self) -> float:
        """Tasks x cores x time limit of all arrays: the most that the submission can take."""
        return sum(
            len(array.tasks) * array.resources.cores * array.resources.time_min / 60
            for array in self.arrays
        )


def make_submission(
    plan: Plan, run: Path, state: RunState | None, launch: Launch, options: Options
) -> Submission:
    """The submission of a plan: of a new run, or of the cells that the run of `state` lacks.

    A pure function, which `--dry-run` prints. Raises InputError for a plan that adds no cell, and
    for --paired on a run whose first cells were submitted without it.
    """
    if state is None:
        return _submission(run, plan.cells, Blocks(), launch, options, plan=plan)
    cells = assign_indices(plan.experiments, plan.data_root, state.cells)
    if not cells:
        found = f"no cell that {run} does not have"
        raise InputError(plan.source, "grids", found, "a larger spec, or rerun")
    has_blocks = bool(state.blocks.tables)
    if options.paired and not has_blocks:
        allowed = "--extend without it, or another --name"
        raise InputError("--paired", None, f"{run}, which was submitted without it", allowed)
    options = replace(options, paired=has_blocks)
    return _submission(run, cells, state.blocks, launch, options, plan=plan)


def resubmission(
    state: RunState, cells: Sequence[Cell], launch: Launch, options: Options
) -> Submission:
    """The submission of cells that a run has; with `paired` of the whole blocks that hold them."""
    run = state.paths.root
    if not options.paired:
        return _submission(run, cells, state.blocks, launch, options)
    blocks = state.blocks.with_cells(cells, state.cells)
    chosen = [cell for tasks in blocks.values() for task in tasks for cell in task.cells]
    arrays = block_arrays(blocks, launch.site, launch.array_limit)
    return _submission(run, chosen, state.blocks, launch, options, arrays=arrays)


def _submission(
    run: Path,
    cells: Sequence[Cell],
    blocks: Blocks,
    launch: Launch,
    options: Options,
    *,
    plan: Plan | None = None,
    arrays: Sequence[JobArray] | None = None,
) -> Submission:
    new_blocks: dict[str, list[Task]] = {}
    if arrays is None and options.paired:
        new_blocks = pair_cells(cells, blocks.count)
        arrays = block_arrays(new_blocks, launch.site, launch.array_limit)
    elif arrays is None:
        arrays = cell_arrays(cells, launch.site, launch.array_limit)
    tasks = sum(len(array.tasks) for array in arrays)
    most = launch.site.max_parallel
    return Submission(
        run=run,
        cells=tuple(cells),
        arrays=tuple(arrays),
        launch=launch,
        dependencies=options.after,
        # Slurm counts the running tasks of one array alone.
        one_at_a_time=most is not None and len(arrays) > 1 and tasks > most,
        notes=tuple(_notes(arrays, launch, options)),
        plan=plan,
        new_blocks=new_blocks,
    )


def _notes(arrays: Sequence[JobArray], launch: Launch, options: Options) -> Iterator[str]:
    if options.cluster != "slurm":
        return
    for array in arrays:
        if array.is_paired:
            most = max(len(task.cells) for task in array.tasks)
            yield (
                f"a block of {array.label} asks for {array.resources.time_min} minutes, "
                f"{launch.site.time_min} for each of {most} cells; where a partition allows less, "
                "it waits without end"
            )
        if array.first_task:
            what = "block" if array.is_paired else "cell"
            yield (
                f"{array.label} has {what}s {array.numbers[0]} to {array.numbers[-1]} of "
                f"{array.name}, since a job array has at most {launch.array_limit} tasks: task t "
                f"is {what} {array.first_task} + t"
            )
    threads, cpus = os.environ.get(THREADS_VARIABLE), launch.site.cpus_per_task
    if threads not in (None, "", str(cpus)):
        yield f"the jobs inherit {THREADS_VARIABLE}={threads} instead of the site's {cpus} threads"
    site = launch.site
    if not (site.python or site.activate or site.container) and launch.python != sys.executable:
        yield f"runs {launch.python}, as the run was submitted, not {sys.executable}"


def all_arrays(cells: Sequence[Cell], blocks: Blocks, launch: Launch) -> list[JobArray]:
    """The arrays of all these cells, and those of all their blocks, for scripts by hand."""
    arrays = cell_arrays(cells, launch.site, launch.array_limit)
    if not blocks.tables:
        return arrays
    chosen = [cell for cell in cells if (cell.array, cell.index) in blocks.block_of]
    found: dict[str, Any] = blocks.with_cells(chosen, cells)
    return arrays + block_arrays(found, launch.site, launch.array_limit)
