"""The text that `submit` and `rerun` print: a dry run's plan, or what was submitted."""

from __future__ import annotations

from pathlib import Path
from shlex import quote

from gnnhpc.core.cli_support import as_typed
from jobs.actions.submit import Submission
from jobs.cluster.array_script import render_array_script
from jobs.cluster.arrays import array_range, group_by_array, resources_for
from jobs.cluster.launch import Launch
from jobs.printing.status_table import console, format_duration, new_table
from jobs.spec.planning import Plan, missing_data


def print_plan(plan: Plan, run: Path, launch: Launch) -> None:
    """Print a dry run: arrays, cells, resources and scripts."""
    arrays = group_by_array(plan.cells)
    head = f"{len(plan.cells)} cells in {len(arrays)} arrays; site {launch.site_name}"
    print(f"dry run of {plan.name}: {head}; data root {plan.data_root or 'none'}")
    missing = " ".join(missing_data(plan))
    if missing:
        there = f" --data-root {quote(plan.data_root)}" if plan.data_root else ""
        print(f"data missing: {missing}; get them with: gnnhpc data get {missing}{there}")
    print(f"would write {run}\n")
    table = new_table("array", "cells", "--array", "nodes", "tasks a node", "CPUs a task", "limit")
    for array in arrays:
        needs = resources_for(array.layout, launch.site, gpu=array.gpu)
        table.add_row(
            array.name,
            str(len(array.cells)),
            array_range(array.indices, needs.max_parallel),
            str(needs.nodes),
            str(needs.tasks_per_node),
            str(needs.cpus_per_task),
            format_duration(needs.time_min * 60),
        )
    console().print(table)
    print("\n".join(f"{cell.array:<16} {cell.index:>5}  {cell.id}" for cell in plan.cells))
    for array in arrays:
        needs = resources_for(array.layout, launch.site, gpu=array.gpu)
        print(f"\n--- {run}/arrays/{array.name}.sbatch")
        print(render_array_script(array, run, needs, launch), end="")


def print_submission(done: Submission) -> None:
    """Print job ids, the run folder, and the next command or how many cells failed."""
    where = "Slurm job" if done.cluster == "slurm" else "local process"
    for job, array, indices in done.jobs:
        print(f"{array} {indices}: {where} {job}")
    print(f"run folder {done.run}")
    if done.failed is None:
        print(f"next: {as_typed('jobs', 'status')} {quote(str(done.run))}")
    else:
        print(f"{len(done.cells) - done.failed} done, {done.failed} failed")
