"""What is submitted: arrays, scripts and dependencies, decided before anything is written."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gnnhpc.core.errors import InputError
from gnnhpc.experiment.manifest import Cell, assign_indices
from jobs.run.run_state import RunState
from jobs.slurm.batch_script import batch_script
from jobs.slurm.job_array import JobArray, block_arrays, cell_arrays, pair_cells
from jobs.slurm.launch import THREADS_VARIABLE, Launch
from jobs.slurm.paired_blocks import Blocks
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
    """Cells in the order in which a local run takes them."""
    arrays: tuple[JobArray, ...]
    launch: Launch
    blocks: Blocks = field(default_factory=Blocks)
    """The paired blocks of the run, with those that are new."""
    dependencies: tuple[str, ...] = ()
    """Ids of Slurm jobs that must end before any array begins."""
    one_at_a_time: bool = False
    """Whether each array waits for the one before it, so that max_parallel holds for all."""
    notes: tuple[str, ...] = ()
    """What a user should know, such as the parts that a large array comes in."""
    advice: tuple[str, ...] = ()
    """What would make the measurements sounder."""
    plan: Plan | None = None
    """The sweep of new cells; None for a rerun."""

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

    A pure function, which `--dry-run` prints. Raises InputError for a plan that adds no cell, for
    --paired on a run whose first cells were submitted without it, and for a time limit that the
    partition does not allow.
    """
    cells: Sequence[Cell] = plan.cells
    before = Blocks()
    if state is not None:
        before, cells = state.blocks, assign_indices(plan.experiments, plan.data_root, state.cells)
        if not cells:
            found = f"no cell that {run} does not have"
            raise InputError(plan.source, "grids", found, "a larger spec, or rerun")
        if options.paired and not before.tables:
            allowed = "--extend without it, or another --name"
            raise InputError("--paired", None, f"{run}, which was submitted without it", allowed)
        options = replace(options, paired=bool(before.tables))
    if not options.paired:
        arrays = cell_arrays(cells, launch.site, launch.array_limit)
        return _submission(run, cells, arrays, before, launch, options, plan)
    new = pair_cells(cells, before.count)
    arrays = block_arrays(new, launch.site, launch.array_limit)
    return _submission(run, cells, arrays, before.with_tasks(new), launch, options, plan)


def resubmission(
    state: RunState, cells: Sequence[Cell], launch: Launch, options: Options
) -> Submission:
    """The submission of cells that a run has; with `paired` of the whole blocks that hold them."""
    if options.paired:
        blocks = state.blocks.with_cells(cells, state.cells)
        cells = [cell for tasks in blocks.values() for task in tasks for cell in task.cells]
        arrays = block_arrays(blocks, launch.site, launch.array_limit)
    else:
        arrays = cell_arrays(cells, launch.site, launch.array_limit)
    return _submission(state.paths.root, cells, arrays, state.blocks, launch, options, None)


def _submission(
    run: Path,
    cells: Sequence[Cell],
    arrays: Sequence[JobArray],
    blocks: Blocks,
    launch: Launch,
    options: Options,
    plan: Plan | None,
) -> Submission:
    in_slurm = options.cluster == "slurm"
    if in_slurm:
        for array in arrays:
            _check_time_limit(array, launch)
    tasks = sum(len(array.tasks) for array in arrays)
    most = launch.site.max_parallel
    return Submission(
        run=run,
        cells=tuple(cells),
        arrays=tuple(arrays),
        launch=launch,
        blocks=blocks,
        dependencies=options.after,
        # Slurm counts the running tasks of one array alone.
        one_at_a_time=most is not None and len(arrays) > 1 and tasks > most,
        notes=tuple(_notes(arrays, launch)) if in_slurm else (),
        advice=tuple(_advice(arrays, launch, options)) if in_slurm else (),
        plan=plan,
    )


def _check_time_limit(array: JobArray, launch: Launch) -> None:
    """Raises InputError for an array that its partition would leave waiting without end."""
    site, most, needed = launch.site, launch.longest_min, array.resources.time_min
    if most is None or needed <= most:
        return
    allowed, count = f"at most {most} minutes in this partition", array.most_cells
    if not array.is_paired:
        raise InputError("site", "time", site.time, allowed)
    found = f"{site.time}, {needed} minutes for the {count} cells of a block of {array.name}"
    each = most // count
    fits = each * 60 > site.signal
    allowed += f": time {each} (minutes of a cell)" if fits else ": a sweep with smaller blocks"
    raise InputError("site", "time", found, f"{allowed}, or no --paired")


def _advice(arrays: Sequence[JobArray], launch: Launch, options: Options) -> Iterator[str]:
    layouts = {str(cell.experiment.layout) for array in arrays for cell in array.cells}
    if len(layouts) > 1 and not options.paired:
        yield (
            "layouts run in jobs of their own, on other nodes and at other times; --paired runs "
            "all layouts of a repeat in one job, on the same nodes"
        )
    if not launch.site.exclusive:
        yield "jobs may share nodes with others, which disturbs times; site key: exclusive: true"


def _notes(arrays: Sequence[JobArray], launch: Launch) -> Iterator[str]:
    for array in arrays:
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
    whole = blocks.with_cells(chosen, cells)
    return arrays + block_arrays(whole, launch.site, launch.array_limit)
