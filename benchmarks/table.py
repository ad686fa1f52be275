"""The table: matches of contestants, the ratios that they give, and how these are written."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
from rich.console import Console
from rich.table import Table

from analysis.statistics.intervals import Interval, ratio_of_pairs
from benchmarks.turns import Entry, Outcome, compete
from gnnhpc.core.provenance import cpu_model, git_commit
from gnnhpc.core.versioned_json import write_atomically

COLUMNS = ("what", "ours", "reference", "ratio", "ratio_low", "ratio_high", "goal", "met")


@dataclass(frozen=True)
class Comparison:
    """One ratio: `factor` times the reference over ours, so that more is better."""

    what: str
    ours: str
    """Name of a contestant."""
    reference: str | tuple[str, ...] | float
    """Another contestant; several, of which the fastest has to meet the goal; or a limit."""
    goal: float | None = None
    """The smallest ratio that is good enough."""
    of: str = "seconds"
    """Name of the number that both measured."""
    reference_of: str | None = None
    """Name of the reference's number, if another."""
    factor: float = 1.0


@dataclass(frozen=True)
class Match:
    """Contestants that take turns, and what is compared of them."""

    contestants: Mapping[str, Entry]
    comparisons: Sequence[Comparison]
    rounds: int = 9
    warmup: int = 2
    threads: int | None = None
    """Threads of every contestant; None takes those of the command."""
    cpus: int = 1
    """The fewest CPUs on which the comparison means anything."""


@dataclass(frozen=True)
class Row:
    """One ratio as it was measured; None where it was not, with the reason in `missing`."""

    what: str
    goal: float | None = None
    ours: float | None = None
    reference: float | None = None
    ratio: Interval | None = None
    missing: str = ""
    failed: bool = False
    """The project's own contestant failed."""
    quick: bool = False
    """The sizes are small and the goal means nothing."""

    @property
    def met(self) -> str:
        if self.ratio is None:
            return f"not measured: {self.missing}"
        if self.goal is None:
            return "no goal"
        if self.quick:
            return "not compared: --quick"
        return "yes" if self.ratio.value >= self.goal else "no"

    def cells(self) -> tuple[str, ...]:
        ratio = (self.ratio.value, self.ratio.low, self.ratio.high) if self.ratio else (None,) * 3
        numbers = (self.ours, self.reference, *ratio, self.goal)
        return (self.what, *("" if n is None else f"{n:.4g}" for n in numbers), self.met)


def measure(match: Match, threads: int, *, quick: bool = False) -> Iterator[Row]:
    """Let the contestants compete; yields a row for each comparison."""
    available = len(os.sched_getaffinity(0))
    if available < match.cpus:
        for each in match.comparisons:
            yield Row(each.what, each.goal, missing=f"{available} CPUs, {match.cpus} needed")
        return
    outcome = compete(
        match.contestants,
        2 if quick else match.rounds,
        match.threads or threads,
        1 if quick else match.warmup,
    )
    for each in match.comparisons:
        yield from _rows(each, outcome, quick)


def _rows(comparison: Comparison, outcome: Outcome, quick: bool) -> Iterator[Row]:
    goal, ours = comparison.goal, comparison.ours
    if ours in outcome.missing:
        yield Row(comparison.what, goal, missing=outcome.missing[ours], failed=True)
        return
    values = _values(outcome, ours, comparison.of)
    if isinstance(comparison.reference, float):
        limit = [comparison.reference] * len(values)
        yield _row(comparison, comparison.what, goal, values, limit, quick)
        return
    names = comparison.reference
    names = (names,) if isinstance(names, str) else names
    of = comparison.reference_of or comparison.of
    measured = {n: _values(outcome, n, of) for n in names if n not in outcome.missing}
    best = min(measured, key=lambda name: median(measured[name]), default=None)
    for name in names:
        what = comparison.what if len(names) == 1 else f"{comparison.what}, {name}"
        if name not in measured:
            yield Row(what, None if best else goal, missing=outcome.missing[name])
            continue
        what += ": the fastest form" if len(names) > 1 and name == best else ""
        its_goal = goal if name == best else None
        yield _row(comparison, what, its_goal, values, measured[name], quick)


def _values(outcome: Outcome, name: str, of: str) -> list[float]:
    return [turn[of] for turn in outcome.taken[name]]


def _row(
    comparison: Comparison,
    what: str,
    goal: float | None,
    ours: Sequence[float],
    reference: Sequence[float],
    quick: bool,
) -> Row:
    """A round is a pair, and pairs are what the interval is over."""
    pair = np.asarray(reference), np.asarray(ours)
    ratio = ratio_of_pairs(*pair, comparison.factor, by_ranks=True)
    return Row(what, goal, median(ours), comparison.factor * median(reference), ratio, quick=quick)


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """Replace the file by one with these rows."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(row.cells() for row in rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text.getvalue())


def show(rows: Sequence[Row], console: Console) -> None:
    """Print the rows; those that miss their goal are red."""
    load = os.getloadavg()[0]
    table = Table(
        title=f"{cpu_model()}, {len(os.sched_getaffinity(0))} CPUs, load {load:.1f}, "
        f"commit {(git_commit() or 'unknown')[:12]}",
        caption="ratio = reference / ours, with its 95 % interval over rounds; goal = the smallest "
        "ratio that is good enough",
        title_justify="left",
        caption_justify="left",
    )
    for column in COLUMNS:
        table.add_column(column, justify="left" if column in ("what", "met") else "right")
    for row in rows:
        table.add_row(*row.cells(), style="red" if row.met == "no" else None)
    console.print(table)
