"""What the commands print: tables, lines and JSON."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from itertools import islice
from pathlib import Path
from shlex import quote

from gnnhpc.core.cli_options import as_typed
from gnnhpc.core.run_paths import RunPaths
from jobs.run.cell_state import MAY_RUN
from jobs.run.cost import RunCost
from jobs.run.status import RunStatus, status
from jobs.slurm.job_array import format_indices
from jobs.submit.submission import Submission
from jobs.submit.submit import SCHEDULERS, Submitted
from jobs.sweep.plan import missing_data


def print_dry_run(submission: Submission) -> None:
    """Print the first script and the cells; then arrays, resources and cost."""
    arrays, cells = submission.arrays, submission.cells
    if submission.cluster == "slurm":
        script = RunPaths(submission.run).script(arrays[0].name)
        print(f"--- {script}\n{submission.files[script.name]}")
    for cell in cells:
        print(f"{cell.array:<16} {cell.index:>5}  {cell.id}")
    root, site = cells[0].data_root, submission.launch.site_name
    jobs = (submission.tasks, "block") if submission.is_paired else (len(arrays), "array")
    head = f"{_count(len(cells), 'cell')} in {_count(*jobs)}; site {site}"
    print(f"\ndry run of {submission.run.name}: {head}; data root {root or 'none'}")
    if missing := " ".join(missing_data([cell.experiment for cell in cells], root)):
        there = f" --data-root {quote(root)}" if root else ""
        print(f"data missing: {missing}; get them with: gnnhpc data get {missing}{there}")
    print(f"would {'write' if submission.plan else 'run again cells of'} {submission.run}")
    if submission.plan and submission.run.exists():
        print(f"{submission.run} exists already, so the submission needs another --name")
    lines = [*_array_needs(submission), *_edges_lines(submission), *_summary(submission)]
    print("\n".join(["", *lines]))


def _array_needs(submission: Submission) -> list[str]:
    """A line for each array: what a job of it asks Slurm for, or its ranks on this machine."""
    rows: list[tuple[str, ...]] = [("array", "cells", "ranks")]
    if submission.cluster == "local":
        for array in submission.arrays:
            ranks = array.resources.nodes * array.resources.tasks_per_node
            rows.append((array.name, str(len(array.cells)), str(ranks)))
        return _table(rows)
    rows = [("array", "cells", "nodes", "tasks a node", "CPUs a task", "limit", "--array")]
    for array in submission.arrays:
        needs, tasks = array.resources, array.array_option(submission.launch.site.max_parallel)
        sizes = (len(array.cells), needs.nodes, needs.tasks_per_node, needs.site.cpus_per_task)
        limit = format_duration(needs.time_min * 60)
        rows.append((array.name, *map(str, sizes), limit, tasks))
    return _table(rows)


def _summary(submission: Submission) -> Iterator[str]:
    """What jobs may cost, and what would make the measurements sounder."""
    if submission.cluster == "local":
        return
    hours = f"{submission.most_core_hours:.3g} core-hours"
    yield f"at most {hours}, each task up to its time limit, without requeues"
    layouts = {cell.experiment.layout for cell in submission.cells}
    if not submission.is_paired and len(layouts) > 1:
        yield (
            "advice: layouts run in jobs of their own, on other nodes and at other times; "
            "--paired runs all layouts of a repeat in one job, on the same nodes"
        )
    if not submission.launch.site.exclusive:
        yield "advice: jobs may share nodes, which disturbs times; site key: exclusive: true"


def _edges_lines(submission: Submission) -> Iterator[str]:
    """What cutting a graph into chunks does to its edges, for each way of cutting it."""
    experiments = [cell.experiment for cell in submission.cells]
    cut = {
        (each.chunks, each.total_chunks)
        for each in experiments
        if each.total_chunks > 1 and each.sampling is None and each.data.facts().kind == "graph"
    }
    for mode, count in sorted(cut):
        kept = {
            "halo": "all edges; rows near the cuts are computed several times",
            "contiguous": f"about {1 / count:.0%} of the edges where nodes have no order",
        }.get(mode, f"more than {1 / count:.0%} of the edges, as METIS finds clusters")
        more = "" if mode == "halo" else "; chunks: halo keeps all"
        yield f"chunks: {mode} in {count} chunks keeps {kept}{more}"


def print_submitted(done: Submitted) -> None:
    """Print job ids, the run folder, and the next command; or the status after waiting."""
    submission, run = done.submission, quote(str(done.run))
    for array, job in done.arrays:
        what = SCHEDULERS[submission.cluster].job
        print(f"{array.name} {format_indices(array.numbers)}: {what} {job}")
    print(f"run folder {done.run}")
    if left := done.tasks_left:
        paired = " --paired" if submission.is_paired else ""
        print(
            f"{submission.tasks - left} of {submission.tasks} tasks are submitted: Slurm takes no "
            "more of your jobs now (MaxSubmitJobs); when some have ended: "
            f"{as_typed('jobs', 'rerun')} {run} --missing{paired}"
        )
    for line in _summary(submission):
        print(line)
    if done.failed is None:
        print(f"next: {as_typed('jobs', 'status')} {run}")
    else:
        print_status(status(done.run), cells=False)


def print_status(current: RunStatus, *, cells: bool, cost: RunCost | None = None) -> None:
    """Print a line for each array, or each cell; then the counts, and what it cost."""
    lines = _cell_lines(current) if cells else _array_lines(current)
    lines.append(f"{current.run.name}: {current.line or 'no cells'} ({current.slurm})")
    if not cells:
        lines += _details(current)
    if cost is not None:
        running = f", {cost.running} of them running" if cost.running else ""
        spent = f"{cost.core_s / 3600:.3g} core-hours of {cost.tasks} tasks{running}"
        unknown = "unknown, since sacct says nothing of these jobs"
        lines.append(f"cost: {spent if cost.tasks else unknown}")
    print("\n".join([*lines, *next_steps(current)]))


def _details(current: RunStatus) -> Iterator[str]:
    """Why cells failed, one line for each of the first ten; why others wait; flags."""
    ended = (cell for cell in current.cells if cell.state not in ("done", *MAY_RUN))
    for cell in islice((cell for cell in ended if cell.detail), 10):
        yield f"  {cell.array} {cell.index}: {cell.state}: {cell.detail}"
    for state in ("pending", "unknown"):
        reasons = Counter(cell.detail for cell in current.cells if cell.state == state)
        for reason, count in reasons.most_common(3):
            if reason:
                yield f"  {state}: {count} cells, {reason}"
    flags = Counter(flag for cell in current.cells if cell.state == "done" for flag in cell.flags)
    if flags:
        shown = ", ".join(f"{flag} ({count})" for flag, count in flags.items())
        yield f"  flags of done cells: {shown}; --cells shows which"


def next_steps(current: RunStatus) -> Iterator[str]:
    """What to type after nothing runs: a rerun of cells without a valid result, or a report."""
    if current.live:
        return
    run = quote(str(current.run))
    if current.complete:
        yield f"next: {as_typed('analysis', 'report')} {run}"
        return
    models = {cell.id: str(cell.settings["model"]["name"]) for cell in current.state.cells}
    wrong = {
        one.cell: models[one.cell]
        for one in current.cells
        if (one.state == "failed" or "engine-parity" in one.flags) and ":" in models[one.cell]
    }
    if wrong:
        yield (
            f"next: where {', '.join(sorted(set(wrong.values())))} is wrong: correct it, and "
            f"{as_typed('jobs', 'submit')} SPEC.yaml --name NEW; a rerun runs the copy in the run"
        )
    states = {cell.state for cell in current.cells if cell.cell not in wrong} - {"done"}
    if not states:
        return
    which = "--missing" if "missing" in states else "--failed"
    which = "--flagged" if states == {"invalid"} else which
    paired = " --paired" if current.state.blocks else ""
    memory = " --mem SIZE, with more memory" if "out of memory" in states else ""
    yield f"next: {as_typed('jobs', 'rerun')} {run} {which}{paired}{memory}"


def status_json(current: RunStatus, cost: RunCost | None = None) -> str:
    """Run, counts, every cell, and what it cost if that was asked for."""
    shown: dict[str, object] = {
        "run": str(current.run),
        "slurm": current.slurm,
        "counts": current.counts(),
        "cells": [asdict(cell) for cell in current.cells],
    }
    return json.dumps(shown | ({"cost": asdict(cost)} if cost else {}), indent=1)


def print_runs(runs: Mapping[Path, RunStatus | str]) -> None:
    """Print a line for each run: its name, when it was made, cells, counts of states."""
    rows = [("run", "made", "cells", "state")]
    for run, current in runs.items():
        cells, state = "", f"damaged: {current}"
        if isinstance(current, RunStatus):
            cells, state = str(len(current.cells)), current.line
        created = time.localtime(RunPaths(run).manifest.stat().st_mtime)
        rows.append((run.name, time.strftime("%Y-%m-%d %H:%M", created), cells, state))
    print("\n".join(_table(rows)))


def format_duration(seconds: float) -> str:
    """Seconds as 0:03:05 or 2:10:00."""
    return str(timedelta(seconds=round(seconds)))


def _array_lines(current: RunStatus) -> list[str]:
    """A line for each array: its cells in each state, attempts, and what is known of the rest."""
    states = list(current.counts())
    rows = [("array", "cells", *states, "attempts", "s a step", "left")]
    for name in dict.fromkeys(cell.array for cell in current.cells):
        cells = [cell for cell in current.cells if cell.array == name]
        counts = Counter(cell.state for cell in cells)
        step_s = [cell.step_s for cell in cells if cell.step_s is not None]
        etas = [cell.eta_s for cell in cells if cell.eta_s is not None]
        step = f"{sum(step_s) / len(step_s):.3g}" if step_s else ""
        left = format_duration(max(etas)) if etas else ""
        shown = (str(counts[state] or "") for state in states)
        attempts = str(sum(cell.attempts for cell in cells) or "")
        rows.append((name, str(len(cells)), *shown, attempts, step, left))
    columns = [column for column in zip(*rows, strict=True) if any(column[1:])]
    return _table(list(zip(*columns, strict=True)))


def _cell_lines(current: RunStatus) -> list[str]:
    """A line for each cell."""
    rows = [("array", "index", "state", "attempts", "step", "time", "cell", "why")]
    for cell in current.cells:
        left = f", {format_duration(cell.eta_s)} left" if cell.eta_s else ""
        time_left = "" if cell.step_s is None else f"{cell.step_s:.3g} s a step{left}"
        done = f"{cell.step} of {cell.steps}" if cell.step else ""
        place = (cell.array, str(cell.index), cell.state, str(cell.attempts or ""))
        rows.append((*place, done, time_left, cell.cell, cell.detail or ""))
    return _table(rows)


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Rows in columns, numbers to the right; the first row is the head, the last column ragged."""
    formats = []
    for head, *cells in list(zip(*rows, strict=True))[:-1]:
        side = ">" if all(cell[:1].isdigit() for cell in cells if cell) else "<"
        formats.append(f"{{:{side}{max(map(len, (head, *cells)))}}}")
    form = "  ".join([*formats, "{}"])
    return [form.format(*row).rstrip() for row in rows]


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
