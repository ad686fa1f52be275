"""What the commands print: plans, states of runs, what was submitted."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from jobs.arrays import array_range, group, resources
from jobs.judge import CellStatus
from jobs.overview import RunStatus
from jobs.planning import Plan
from jobs.script import render
from jobs.site import Site
from jobs.submitting import Submission

_COLOURS = {"done": "green", "running": "cyan", "pending": "blue", "missing": "dim"}


def console() -> Console:
    """A terminal's own width; wide where the output goes to a file, so that no line is cut."""
    return Console(width=None if sys.stdout.isatty() else 160, highlight=False, soft_wrap=True)


def print_plan(plan: Plan, run: Path, site_name: str, site: Site) -> None:
    """Arrays, cells, resources and scripts of a plan that is not submitted."""
    arrays = group(plan.cells)
    head = f"{len(plan.cells)} cells in {len(arrays)} arrays; site {site_name}"
    print(f"dry run of {plan.name}: {head}; data root {plan.data_root or 'none'}")
    print(f"would write {run}\n")
    table = _table("array", "cells", "--array", "nodes", "tasks a node", "CPUs a task", "limit")
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
        print(f"next: python -m jobs status {done.run}")
    else:
        print(f"{len(done.cells) - done.failed} done, {done.failed} failed")


def print_status(known: RunStatus, *, cells: bool) -> None:
    """A line an array, or a line a cell; then the counts."""
    out = console()
    out.print(_cells(known) if cells else _arrays(known))
    out.print(summary(known), markup=False)
    if not cells:
        for cell in _worth_a_line(known.cells):
            out.print(f"  {cell.array} {cell.index}: {cell.state}: {cell.detail}", markup=False)


def summary(known: RunStatus) -> str:
    """All counts in one line."""
    counts = ", ".join(f"{count} {state}" for state, count in known.counts().items())
    return f"{known.run.name}: {counts or 'no cells'} ({known.slurm})"


def as_json(known: RunStatus) -> str:
    """For scripts: run, counts, and every cell."""
    return json.dumps(
        {
            "run": str(known.run),
            "slurm": known.slurm,
            "counts": known.counts(),
            "cells": [asdict(cell) for cell in known.cells],
        },
        indent=1,
    )


def duration(seconds: float | None) -> str:
    """Seconds as people read them: 42 s, 3:05, 2:10:00."""
    if seconds is None:
        return ""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _arrays(known: RunStatus) -> Table:
    states = list(known.counts())
    table = _table("array", "cells", *states, "s a step", "left")
    for name, cells in known.arrays().items():
        counts = {state: sum(cell.state == state for cell in cells) for state in states}
        step_s = [c.step_s for c in cells if c.state == "running" and c.step_s is not None]
        etas = [c.eta_s for c in cells if c.eta_s is not None]
        table.add_row(
            name,
            str(len(cells)),
            *(_colour(state, str(count or "")) for state, count in counts.items()),
            f"{sum(step_s) / len(step_s):.3g}" if step_s else "",
            duration(max(etas)) if etas else "",
        )
    return table


def _cells(known: RunStatus) -> Table:
    table = _table("array", "index", "state", "attempts", "step", "s a step", "left", "why", "cell")
    for cell in known.cells:
        step = f"{cell.step} of {cell.steps}" if cell.step is not None else ""
        table.add_row(
            cell.array,
            str(cell.index),
            _colour(cell.state, cell.state),
            str(cell.attempts or ""),
            step,
            f"{cell.step_s:.3g}" if cell.step_s is not None else "",
            duration(cell.eta_s),
            _plain(cell.detail or ""),
            cell.cell,
        )
    return table


def _worth_a_line(cells: tuple[CellStatus, ...], most: int = 10) -> Iterator[CellStatus]:
    """The first few cells that somebody should look at."""
    found = 0
    for cell in cells:
        if cell.detail and cell.state not in ("done", "running", "pending") and found < most:
            found += 1
            yield cell


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        text = heading in ("array", "state", "why", "cell", "--array")
        table.add_column(heading, justify="left" if text else "right", no_wrap=heading != "why")
    return table


def _colour(state: str, text: str) -> str:
    return f"[{_COLOURS.get(state, 'red')}]{text}[/]" if text else ""


def _plain(text: str) -> str:
    """Square brackets are rich's markup."""
    return text.replace("[", "\\[")
