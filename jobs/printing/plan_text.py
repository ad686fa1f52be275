"""The text that `submit` and `rerun` print: a dry run's plan, or what was submitted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from shlex import quote

from gnnhpc.core.cli_support import as_typed
from gnnhpc.experiment.manifest import read_manifest
from gnnhpc.records.run_paths import RunPaths
from jobs.actions.submit import Submission
from jobs.actions.try_arrays import Answer
from jobs.cluster.array_script import render_script
from jobs.cluster.arrays import Array, array_range, take_turns
from jobs.cluster.blocks import BlockArray, arrays_of, needs_of
from jobs.cluster.core_hours import most_core_hours
from jobs.cluster.launch import Launch
from jobs.printing.cost_text import most_line, predicted_line
from jobs.printing.status_table import console, format_duration, new_table, next_command
from jobs.spec.planning import Plan, missing_data, plan_of_new_cells
from jobs.state.run_cost import predict_cells
from jobs.state.run_status import status


def print_plan(plan: Plan, run: Path, launch: Launch, *, paired: bool = False) -> None:
    """Print a dry run: scripts and cells, then what a screen shows last: arrays and resources."""
    arrays = arrays_of(plan.cells, launch.array_limit, paired=paired)
    for array in arrays:
        print(f"--- {run}/arrays/{array.label}.sbatch")
        print(render_script(array, run, needs_of(array, launch.site), launch))
    print("\n".join(f"{cell.array:<16} {cell.index:>5}  {cell.id}" for cell in plan.cells))
    for array in arrays:
        if isinstance(array, BlockArray):
            print("\n".join(_block_lines(array)))
    print()
    _print_arrays(plan, run, launch, arrays, paired=paired)


def _print_arrays(
    plan: Plan, run: Path, launch: Launch, arrays: Sequence[Array | BlockArray], *, paired: bool
) -> None:
    """What would be submitted, what is asked for it, and what it may cost."""
    what, count = ("block", sum(len(a.tasks) for a in arrays)) if paired else ("array", len(arrays))
    head = f"{len(plan.cells)} cells in {count} {what}{'s' if count != 1 else ''}"
    head += f"; site {launch.site_name}"
    print(f"dry run of {plan.name}: {head}; data root {plan.data_root or 'none'}")
    missing = " ".join(missing_data(plan))
    if missing:
        there = f" --data-root {quote(plan.data_root)}" if plan.data_root else ""
        print(f"data missing: {missing}; get them with: gnnhpc data get {missing}{there}")
    print(f"would write {run}\n")
    table = new_table("array", "cells", "--array", "nodes", "tasks a node", "CPUs a task", "limit")
    asked = []
    for array in arrays:
        needs = needs_of(array, launch.site)
        asked.append((len(array.tasks), needs))
        table.add_row(
            array.label,
            str(len(array.cells)),
            array_range(array.tasks, needs.max_parallel),
            str(needs.nodes),
            str(needs.tasks_per_node),
            str(needs.cpus_per_task),
            format_duration(needs.time_min * 60),
        )
    console().print(table)
    print(most_line(most_core_hours(asked, launch)))
    paths = RunPaths(run)
    if paths.manifest.is_file():
        new = plan_of_new_cells(plan, read_manifest(paths.manifest)).cells
        that = "that the run does not have"
        print(predicted_line(predict_cells(paths, new), f"cell {that}", f"cells {that}"))
    for line in _notes_on_parts(arrays, launch.array_limit):
        print(line)
    if take_turns([len(array.tasks) for array in arrays], launch.site.max_parallel):
        print(f"at most {launch.site.max_parallel} cells at once: one array after the other")


def _notes_on_parts(arrays: Sequence[Array | BlockArray], limit: int) -> Iterator[str]:
    """How arrays are cut that have more cells, or blocks, than one job array takes."""
    for array in arrays:
        if array.offset:
            what = "block" if isinstance(array, BlockArray) else "cell"
            first, last = array.indices[0], array.indices[-1]
            yield (
                f"{array.label}: {what}s {first} to {last} of {array.name}, as a job array has at "
                f"most {limit} tasks; task t is {what} {array.offset} + t"
            )


def _block_lines(array: BlockArray) -> Iterator[str]:
    """The cells of each block, in their order."""
    for block in array.blocks:
        cells = ", ".join(f"{cell.array} {cell.index}" for cell in block.cells)
        yield f"{array.name} {block.number}: {cells}"


def print_answers(answers: Sequence[Answer]) -> None:
    """Print what Slurm says of each array."""
    for answer in answers:
        cells = f"{answer.cells} cell{'s' if answer.cells != 1 else ''}"
        print(f"{answer.label} ({cells}): {answer.words}")


def print_submission(done: Submission) -> None:
    """Print job ids, the run folder, and the next command or how many cells failed."""
    where = "Slurm job" if done.cluster == "slurm" else "local process"
    for job, array, indices in done.jobs:
        print(f"{array} {indices}: {where} {job}")
    if done.report_job is not None:
        print(f"report, once these have ended: Slurm job {done.report_job}")
    print(f"run folder {done.run}")
    if done.most is not None:
        print(most_line(done.most))
        predicted = predict_cells(RunPaths(done.run), done.cells)
        if predicted.cells:
            print(predicted_line(predicted, "cell", "cells"))
    if done.failed is None:
        print(f"next: {as_typed('jobs', 'status')} {quote(str(done.run))}")
    else:
        print(f"{len(done.cells) - done.failed} done, {done.failed} failed")
        if (command := next_command(status(done.run))) is not None:
            print(f"next: {command}")
