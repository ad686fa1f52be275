"""What `submit` and `rerun` print: a plan that is not submitted, or what was."""

from __future__ import annotations

from pathlib import Path
from shlex import quote

from jobs.actions.submit import Submission
from jobs.cluster.array_script import render
from jobs.cluster.arrays import array_range, group, resources
from jobs.cluster.site import Site
from jobs.show.status_table import console, duration, new_table
from jobs.spec.planning import Plan, missing_data


def print_plan(plan: Plan, run: Path, site_name: str, site: Site) -> None:
    """Arrays, cells, resources and scripts of a plan that is not submitted."""
    arrays = group(plan.cells)
    head = f"{len(plan.cells)} cells in {len(arrays)} arrays; site {site_name}"
    print(f"dry run of {plan.name}: {head}; data root {plan.data_root or 'none'}")
    missing = " ".join(missing_data(plan))
    if missing:
        there = f" --data-root {quote(plan.data_root)}" if plan.data_root else ""
        print(f"data missing: {missing}; get them with: gnnhpc data get {missing}{there}")
    print(f"would write {run}\n")
    table = new_table("array", "cells", "--array", "nodes", "tasks a node", "CPUs a task", "limit")
    for array in arrays:
        needs = resources(array.layout, site, gpu=array.gpu)
        table.add_row(
            array.name,
            str(len(array.cells)),
            array_range(array.indices, needs.max_parallel),
            str(needs.nodes),
            str(needs.tasks_per_node),
            str(needs.cpus_per_task),
            duration(needs.time_min * 60),
        )
    console().print(table)
    print("\n".join(f"{cell.array:<16} {cell.index:>5}  {cell.id}" for cell in plan.cells))
    for array in arrays:
        needs = resources(array.layout, site, gpu=array.gpu)
        print(f"\n--- {run}/arrays/{array.name}.sbatch")
        print(render(array, run, needs, site), end="")


def print_submission(done: Submission) -> None:
    """Run folder, job ids and what to do next."""
    where = "Slurm job" if done.cluster == "slurm" else "local process"
    for job, array, indices in done.jobs:
        print(f"{array} {indices}: {where} {job}")
    print(f"run folder {done.run}")
    if done.failed is None:
        print(f"next: python -m jobs status {quote(str(done.run))}")
    else:
        print(f"{len(done.cells) - done.failed} done, {done.failed} failed")
