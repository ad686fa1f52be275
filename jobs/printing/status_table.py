"""The output of `status`: a line an array, a line a cell, or JSON."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from shlex import quote

from rich.console import Console
from rich.table import Table

from gnnhpc.core.cli_support import as_typed
from jobs.printing.cost_text import cost_json, cost_lines
from jobs.state.run_cost import RunCost
from jobs.state.run_status import RunStatus
from jobs.state.states import MAY_RUN, UNFINISHED, UNKNOWN, CellStatus

_HEADINGS = ("array", "index", "state", "attempts", "step", "time", "cell", "why")
_ANSI = {"done": "", "running": "36", "pending": "34", "unknown": "33", "missing": "2"}
_ANSI_ELSE = "31"
_PASSING = frozenset(
    ("None", "Priority", "Resources", "Dependency", "BeginTime", "JobArrayTaskLimit", "Prolog")
)
"""Reasons for which cells wait their turn."""
_COLOURS = {
    "done": "green",
    "running": "cyan",
    "pending": "blue",
    "unknown": "yellow",
    "missing": "dim",
}


def console() -> Console:
    """As wide as the terminal; in a file or pipe wide enough that no line is cut."""
    return Console(width=None if sys.stdout.isatty() else 1000, highlight=False)


def print_status(status: RunStatus, *, cells: bool, cost: RunCost | None = None) -> None:
    """Print a line an array, or a line a cell; then the counts, and what it cost."""
    out = console()
    if cells:
        for line in _cell_lines(status, colour=sys.stdout.isatty()):
            print(line)
    else:
        out.print(_array_table(status))
    out.print(status_line(status), markup=False)
    if not cells:
        for cell in _cells_to_look_at(status.cells):
            out.print(f"  {cell.array} {cell.index}: {cell.state}: {cell.detail}", markup=False)
    for reason, count in _hold_ups(status.cells).items():
        out.print(f"  pending: {count} cells wait, Slurm says {reason}", markup=False)
    if (unknown := status.counts().get(UNKNOWN)) is not None:
        detail = next(cell.detail for cell in status.cells if cell.state == UNKNOWN)
        out.print(f"  unknown: {unknown} cells may run or wait; {detail}", markup=False)
    for line in cost_lines(cost) if cost else ():
        out.print(line, markup=False)
    if (command := next_command(status)) is not None:
        out.print(f"next: {command}", markup=False)


def next_command(status: RunStatus) -> str | None:
    """Once nothing runs: the cells again that have no valid result, or a report."""
    if status.live:
        return None
    counts, run = status.counts(), quote(str(status.run))
    if any(state in counts for state in UNFINISHED):
        which = "--missing" if "missing" in counts else "--failed"
    elif not status.complete:
        which = "--flagged"
    else:
        return f"{as_typed('analysis', 'report')} {run}"
    paired = " --paired" if status.paired else ""
    return f"{as_typed('jobs', 'rerun')} {run} {which}{paired}"


def status_line(status: RunStatus) -> str:
    """The counts of all states, and when Slurm was asked, in one line."""
    counts = ", ".join(f"{count} {state}" for state, count in status.counts().items())
    return f"{status.run.name}: {counts or 'no cells'} ({status.slurm})"


def status_json(status: RunStatus, cost: RunCost | None = None) -> str:
    """For scripts: run, counts, every cell, and what it cost if that was asked for."""
    return json.dumps(
        {
            "run": str(status.run),
            "slurm": status.slurm,
            "counts": status.counts(),
            "cells": [asdict(cell) for cell in status.cells],
        }
        | ({"cost": cost_json(cost)} if cost else {}),
        indent=1,
    )


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


def _array_table(status: RunStatus) -> Table:
    states = list(status.counts())
    table = new_table("array", "cells", *states, "s a step", "left")
    for name, cells in status.arrays().items():
        counts = {state: sum(cell.state == state for cell in cells) for state in states}
        step_s = [c.step_s for c in cells if c.state == "running" and c.step_s is not None]
        etas = [c.eta_s for c in cells if c.eta_s is not None]
        table.add_row(
            name,
            str(len(cells)),
            *(_colour(state, str(count or "")) for state, count in counts.items()),
            f"{sum(step_s) / len(step_s):.3g}" if step_s else "",
            format_duration(max(etas)) if etas else "",
        )
    return table


def _cell_lines(status: RunStatus, *, colour: bool) -> Iterator[str]:
    """A line a cell, in columns; not a rich table, which takes a minute for ten thousand rows."""
    rows = [_HEADINGS, *(_cell_row(cell) for cell in status.cells)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS) - 1)]
    form = "  ".join(f"{{:{side}{width}}}" for side, width in zip("<><>><<", widths, strict=True))
    for row, cell in zip(rows, (None, *status.cells), strict=True):
        line = f"{form.format(*row)}  {row[-1]}".rstrip()
        code = _ANSI.get(cell.state, _ANSI_ELSE) if cell and colour else ""
        yield f"\x1b[{code}m{line}\x1b[0m" if code else line


def _cell_row(cell: CellStatus) -> tuple[str, ...]:
    return (
        cell.array,
        str(cell.index),
        cell.state,
        str(cell.attempts or ""),
        f"{cell.step} of {cell.steps}" if cell.step else "",
        _remaining_text(cell),
        cell.cell,
        cell.detail or "",
    )


def _remaining_text(cell: CellStatus) -> str:
    """Seconds a step, and the time left."""
    if cell.step_s is None:
        return ""
    left = f", {format_duration(cell.eta_s)} left" if cell.eta_s else ""
    return f"{cell.step_s:.3g} s a step{left}"


def _cells_to_look_at(cells: tuple[CellStatus, ...], most: int = 10) -> Iterator[CellStatus]:
    """The first `most` cells that ended badly, with a detail to print."""
    found = 0
    for cell in cells:
        ended = cell.state not in ("done", *MAY_RUN)
        if cell.detail and ended and found < most:
            found += 1
            yield cell


def _hold_ups(cells: tuple[CellStatus, ...]) -> Counter[str]:
    """Slurm's reasons that need not pass by themselves, with how many cells wait for each."""
    reasons = (cell.reason for cell in cells if cell.state == "pending")
    return Counter(reason for reason in reasons if reason and reason not in _PASSING)


def new_table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        text = heading in ("array", "state", "why", "cell", "--array")
        table.add_column(heading, justify="left" if text else "right", no_wrap=heading != "why")
    return table


def _colour(state: str, text: str) -> str:
    return f"[{_COLOURS.get(state, 'red')}]{text}[/]" if text else ""
