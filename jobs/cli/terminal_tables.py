"""What the commands print: tables, lines and JSON."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from shlex import quote

from gnnhpc.core.cli_options import as_typed
from jobs.run.cell_state import MAY_RUN
from jobs.run.cost import RunCost
from jobs.run.known_runs import KnownRun
from jobs.run.status import RunStatus, status
from jobs.slurm.job_array import format_indices
from jobs.submission.clusters import SCHEDULERS
from jobs.submission.submission import Submission
from jobs.submission.submit import Submitted
from jobs.sweep.plan import missing_data

_ANSI = {"done": "", "running": "36", "pending": "34", "unknown": "33", "missing": "2"}
_ANSI_OF_OTHERS = "31"
_PASSING = frozenset(
    ("None", "Priority", "Resources", "Dependency", "BeginTime", "JobArrayTaskLimit", "Prolog")
)
"""Slurm's reasons that pass by themselves."""
_UNITS = ((86400 * 365, "y"), (86400, "d"), (3600, "h"), (60, "min"))


def print_dry_run(submission: Submission) -> None:
    """Print the first script and the cells; then arrays, resources and cost."""
    arrays = submission.arrays
    if submission.cluster == "slurm":
        print(f"--- {submission.run}/arrays/{arrays[0].name}.sbatch")
        print(submission.script(arrays[0]))
    for cell in submission.cells:
        print(f"{cell.array:<16} {cell.index:>5}  {cell.id}")
    for array in arrays:
        for task in array.tasks if array.is_paired else ():
            cells = ", ".join(f"{cell.array} {cell.index}" for cell in task.cells)
            print(f"{array.name} {task.number}: {cells}")
    count = submission.tasks if submission.is_paired else len(arrays)
    what = f"{count} {'block' if submission.is_paired else 'array'}{'s' if count != 1 else ''}"
    cells = f"{len(submission.cells)} cell{'s' if len(submission.cells) != 1 else ''}"
    head = f"{cells} in {what}; site {submission.launch.site_name}"
    root = submission.cells[0].data_root
    print(f"\ndry run of {submission.run.name}: {head}; data root {root or 'none'}")
    experiments = [cell.experiment for cell in submission.cells]
    if missing := " ".join(missing_data(experiments, root)):
        there = f" --data-root {quote(root)}" if root else ""
        print(f"data missing: {missing}; get them with: gnnhpc data get {missing}{there}")
    print(f"would {'write' if submission.plan else 'run again cells of'} {submission.run}\n")
    for line in (*_resource_lines(submission), *_edges_lines(submission)):
        print(line)
    for line in SCHEDULERS[submission.cluster].summary(submission):
        print(line)


def _edges_lines(submission: Submission) -> Iterator[str]:
    """What cutting a graph into chunks does to its edges, for each way of cutting it."""
    cut: dict[tuple[str, int], None] = {}
    for cell in submission.cells:
        experiment = cell.experiment
        graph = experiment.data.facts().kind == "graph" and experiment.sampling is None
        if graph and experiment.total_chunks > 1:
            cut[experiment.chunks, experiment.total_chunks] = None
    for mode, count in sorted(cut):
        if mode == "halo":
            words = "keeps all edges; rows near the cuts are computed several times"
        elif mode == "contiguous":
            words = f"keeps about {1 / count:.0%} of the edges where nodes have no order"
        else:
            words = f"keeps more than {1 / count:.0%} of the edges, as METIS finds clusters"
        more = "" if mode == "halo" else "; chunks: halo keeps all"
        yield f"chunks: {mode} in {count} chunks {words}{more}"


def _resource_lines(submission: Submission) -> list[str]:
    rows: list[tuple[str, ...]] = [
        ("array", "cells", "nodes", "tasks a node", "CPUs a task", "limit", "--array")
    ]
    for array in submission.arrays:
        needs, tasks = array.resources, array.array_option(submission.launch.site.max_parallel)
        sizes = (len(array.cells), needs.nodes, needs.tasks_per_node, needs.site.cpus_per_task)
        limit = format_duration(needs.time_min * 60)
        rows.append((array.name, *map(str, sizes), limit, tasks))
    return _columns(rows, "<>>>>>")


def print_submitted(done: Submitted) -> None:
    """Print job ids, the run folder, and the next command or how many cells failed."""
    submission, run = done.submission, quote(str(done.run))
    scheduler = SCHEDULERS[submission.cluster]
    for array, job in done.arrays:
        print(f"{array.name} {format_indices(array.numbers)}: {scheduler.job} {job}")
    print(f"run folder {done.run}")
    if left := done.tasks_left:
        paired = " --paired" if submission.is_paired else ""
        print(
            f"{submission.tasks - left} of {submission.tasks} tasks are submitted: Slurm takes no "
            "more of your jobs now (MaxSubmitJobs); when some have ended: "
            f"{as_typed('jobs', 'rerun')} {run} --missing{paired}"
        )
    for line in scheduler.summary(submission):
        print(line)
    if done.failed is None:
        print(f"next: {as_typed('jobs', 'status')} {run}")
        return
    current = status(done.run)
    chosen = {cell.id for cell in submission.cells}
    ended = Counter(cell.state for cell in current.cells if cell.cell in chosen)
    print(", ".join(f"{count} {state}" for state, count in ended.items()))
    for line in next_steps(current):
        print(line)


def print_status(current: RunStatus, *, cells: bool, cost: RunCost | None = None) -> None:
    """Print a line for each array, or each cell; then the counts, and what it cost."""
    lines = list(_cell_lines(current) if cells else _array_lines(current))
    lines.append(status_line(current))
    if not cells:
        ended = (c for c in current.cells if c.detail and c.state not in ("done", *MAY_RUN))
        lines += [f"  {c.array} {c.index}: {c.state}: {c.detail}" for c in islice(ended, 10)]
    flags = Counter(flag for c in current.cells if c.state == "done" for flag in c.flags)
    if flags and not cells:
        shown = ", ".join(f"{flag} ({count})" for flag, count in flags.items())
        lines.append(f"  flags of done cells: {shown}; --cells shows which")
    reasons = Counter(c.reason for c in current.cells if c.state == "pending" and c.reason)
    for reason, count in reasons.items():
        if reason not in _PASSING:
            lines.append(f"  pending: {count} cells wait, Slurm says {reason}")
    unknown = [cell for cell in current.cells if cell.state == "unknown"]
    if unknown:
        lines.append(f"  unknown: {len(unknown)} cells may run or wait; {unknown[0].detail}")
    lines += [*(cost_lines(cost) if cost else ()), *next_steps(current)]
    print("\n".join(lines))


def next_steps(current: RunStatus) -> Iterator[str]:
    """What to type after nothing runs: a rerun of cells without a valid result, or a report."""
    if current.live:
        return
    run = quote(str(current.run))
    rerun = f"{as_typed('jobs', 'rerun')} {run}"
    paired = " --paired" if current.paired else ""
    if current.complete:
        yield f"next: {as_typed('analysis', 'report')} {run}"
        return
    wrong = current.custom_models_to_correct()
    if wrong:
        yield (
            f"next: where {', '.join(sorted(set(wrong.values())))} is wrong: correct it, and "
            f"{as_typed('jobs', 'submit')} SPEC.yaml --name NEW; a rerun runs the copy in the run"
        )
    others = {cell.state for cell in current.cells if cell.cell not in wrong} - {"done"}
    if others == {"invalid"}:
        yield f"next: {rerun} --flagged{paired}"
    elif others:
        which = "--missing" if "missing" in others else "--failed"
        more = f"more than {current.mem}" if current.mem else "more than each node gave"
        mem = f" --mem SIZE, with {more}" if "out of memory" in others else ""
        yield f"next: {rerun} {which}{paired}{mem}"


def status_line(current: RunStatus) -> str:
    """The counts of all states, and when Slurm was asked, in one line."""
    counts = ", ".join(f"{count} {state}" for state, count in current.counts().items())
    return f"{current.run.name}: {counts or 'no cells'} ({current.slurm})"


def status_json(current: RunStatus, cost: RunCost | None = None) -> str:
    """Run, counts, every cell, and what it cost if that was asked for."""
    facts: dict[str, object] = {
        "run": str(current.run),
        "slurm": current.slurm,
        "counts": current.counts(),
        "cells": [asdict(cell) for cell in current.cells],
    }
    if cost is not None:
        efficiency = cost.accounted.efficiency if cost.accounted else None
        facts["cost"] = asdict(cost) | {"efficiency": efficiency}
    return json.dumps(facts, indent=1)


def cost_lines(cost: RunCost) -> Iterator[str]:
    """What a run has cost, in core-hours and energy."""
    known = cost.accounted
    if known is None:
        line = (
            f"cost: {cost.recorded_core_s / 3600:.3g} core-hours of {cost.attempts} attempts, from "
            "their ranks' start to their results, since sacct says nothing; CPU efficiency unknown"
        )
        yield f"{line}; {cost.unknown} attempts without a result" if cost.unknown else line
        return
    share = "unknown" if known.efficiency is None else f"{known.efficiency:.0%}"
    running = f", {known.running} of them running" if known.running else ""
    yield (
        f"cost: {known.core_s / 3600:.3g} core-hours of {known.tasks} tasks{running}, as sacct "
        f"said at {known.at}; CPU efficiency {share}"
    )
    if known.energy_j is not None:
        yield f"energy: {known.energy_j / 3.6e6:.3g} kWh of the nodes while the ranks ran"


def runs_lines(runs: Sequence[KnownRun]) -> list[str]:
    """A line for each run, in columns: its name, age, cells, and the counts of states."""
    now = time.time()
    rows = [("run", "age", "cells", "state")]
    for one in runs:
        cells = str(len(one.status.cells)) if one.status else ""
        state = f"damaged: {one.damage}"
        if one.status is not None:
            state = ", ".join(f"{count} {name}" for name, count in one.status.counts().items())
        rows.append((one.run.name, format_age(now - one.created_at), cells, state))
    return _columns(rows, "<>>")


def format_age(seconds: float) -> str:
    """Seconds as 3 d, 5 h, 12 min or now: whole units, of the largest that fits."""
    for unit, name in _UNITS:
        if seconds >= unit:
            return f"{int(seconds // unit)} {name}"
    return "now"


def format_duration(seconds: float | None) -> str:
    """Seconds as 42 s, 3:05 or 2:10:00."""
    if seconds is None:
        return ""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _array_lines(current: RunStatus) -> list[str]:
    """A line for each array, with the number of its cells in each state."""
    states = list(current.counts())
    rows = [("array", "cells", *states, "s a step", "left")]
    for name, cells in current.arrays().items():
        counts = Counter(cell.state for cell in cells)
        step_s = [c.step_s for c in cells if c.state == "running" and c.step_s is not None]
        etas = [c.eta_s for c in cells if c.eta_s is not None]
        rows.append((
            name,
            str(len(cells)),
            *(str(counts[state] or "") for state in states),
            f"{sum(step_s) / len(step_s):.3g}" if step_s else "",
            format_duration(max(etas)) if etas else "",
        ))  # fmt: skip
    return _columns(rows, "<>" + ">" * (len(states) + 1))


def _cell_lines(current: RunStatus) -> Iterator[str]:
    """A line for each cell, coloured by its state in a terminal."""
    rows = [("array", "index", "state", "attempts", "step", "time", "cell", "why")]
    for cell in current.cells:
        left = f", {format_duration(cell.eta_s)} left" if cell.eta_s else ""
        rows.append((
            cell.array,
            str(cell.index),
            cell.state,
            str(cell.attempts or ""),
            f"{cell.step} of {cell.steps}" if cell.step else "",
            "" if cell.step_s is None else f"{cell.step_s:.3g} s a step{left}",
            cell.cell,
            cell.detail or "",
        ))  # fmt: skip
    lines = _columns(rows, "<><>><<")
    for line, cell_state in zip(lines, (None, *current.cells), strict=True):
        code = _ANSI.get(cell_state.state, _ANSI_OF_OTHERS) if cell_state else ""
        yield f"\x1b[{code}m{line}\x1b[0m" if code and sys.stdout.isatty() else line


def _columns(rows: Sequence[tuple[str, ...]], sides: str) -> list[str]:
    """Rows in columns that are aligned to these sides; the last column has any width."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(sides))]
    form = "  ".join(f"{{:{side}{width}}}" for side, width in zip(sides, widths, strict=True))
    return [f"{form.format(*row)}  {row[-1]}".rstrip() for row in rows]
