"""The table: matches of contestants, the ratios that they give, and how these are written."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table

from analysis.statistics.intervals import Interval, ratio_of_pairs
from benchmarks.turns import Entry, Taken, compete
from gnnhpc.core.provenance import cpu_model, git_commit

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
    """One ratio as it was measured; None where it was not, with the reason in `met`."""

    what: str
    goal: float | None
    met: str
    """yes or no, or why there is neither."""
    ours: float | None = None
    reference: float | None = None
    ratio: Interval | None = None
    failed: bool = False
    """The project's own contestant failed."""

    def cells(self) -> tuple[str, ...]:
        """As text, in the order of `COLUMNS`."""
        ratio = (self.ratio.value, self.ratio.low, self.ratio.high) if self.ratio else (None,) * 3
        numbers = (self.ours, self.reference, *ratio, self.goal)
        return (self.what, *("" if n is None else f"{n:.4g}" for n in numbers), self.met)


def measure(match: Match, threads: int, *, quick: bool = False) -> Iterator[Row]:
    """Let the contestants compete; yields a row for each comparison.

    With `quick` the sizes are small and goals mean nothing.
    """
    available = len(os.sched_getaffinity(0))
    if available < match.cpus:
        why = f"not measured: {available} CPUs, {match.cpus} needed"
        yield from (Row(each.what, each.goal, why) for each in match.comparisons)
        return
    rounds, warmup = (2, 1) if quick else (match.rounds, match.warmup)
    taken, missing = compete(match.contestants, rounds, match.threads or threads, warmup)
    for each in match.comparisons:
        if each.ours in missing:
            yield Row(each.what, each.goal, f"not measured: {missing[each.ours]}", failed=True)
        elif isinstance(each.reference, float):
            limits = [each.reference] * len(taken[each.ours])
            yield _row(each, each.what, each.goal, taken, limits, quick=quick)
        else:
            yield from _against_others(each, taken, missing, quick=quick)


def _against_others(
    comparison: Comparison,
    taken: Mapping[str, list[Taken]],
    missing: Mapping[str, str],
    *,
    quick: bool,
) -> Iterator[Row]:
    """A row for each reference, of which the fastest has the goal."""
    names, of = comparison.reference, comparison.reference_of or comparison.of
    assert not isinstance(names, float)
    names = (names,) if isinstance(names, str) else names
    measured = {name: [turn[of] for turn in taken[name]] for name in names if name in taken}
    best = min(measured, key=lambda name: median(measured[name]), default=None)
    for name in names:
        what = comparison.what if len(names) == 1 else f"{comparison.what}, {name}"
        goal = comparison.goal if name == best or best is None else None
        if name not in measured:
            yield Row(what, goal, f"not measured: {missing[name]}")
            continue
        what += ": the fastest form" if len(names) > 1 and name == best else ""
        yield _row(comparison, what, goal, taken, measured[name], quick=quick)


def _row(
    comparison: Comparison,
    what: str,
    goal: float | None,
    taken: Mapping[str, list[Taken]],
    reference: Sequence[float],
    *,
    quick: bool,
) -> Row:
    """A round is a pair, and pairs are what the interval is over."""
    ours = [turn[comparison.of] for turn in taken[comparison.ours]]
    factor = comparison.factor
    ratio = ratio_of_pairs(np.asarray(reference), np.asarray(ours), factor, by_ranks=True)
    met = "no goal" if goal is None else "yes" if ratio.value >= goal else "no"
    met = "not compared: --quick" if quick and goal is not None else met
    return Row(what, goal, met, median(ours), factor * median(reference), ratio)


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """Replace the file by one with these rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame([row.cells() for row in rows], columns=COLUMNS).to_csv(path, index=False)


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
