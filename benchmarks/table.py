"""The table: matches of contestants, the ratios that they give, and how these are written."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

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
        yield from _rows(each, taken, missing, quick=quick)


def _rows(
    comparison: Comparison,
    taken: Mapping[str, list[Taken]],
    missing: Mapping[str, str],
    *,
    quick: bool,
) -> Iterator[Row]:
    """A row for each reference, of which the fastest has the goal; a round is a pair."""
    goal, reference, factor = comparison.goal, comparison.reference, comparison.factor
    if comparison.ours in missing:
        why = f"not measured: {missing[comparison.ours]}"
        yield Row(comparison.what, goal, why, failed=True)
        return
    ours = np.array([turn[comparison.of] for turn in taken[comparison.ours]])
    names = reference if isinstance(reference, tuple) else (reference,)
    of = comparison.reference_of or comparison.of
    measured = {
        name: np.full(len(ours), name)
        if isinstance(name, float)
        else np.array([turn[of] for turn in taken[name]])
        for name in names
        if name not in missing
    }
    best = min(measured, key=lambda name: np.median(measured[name]), default=None)
    for name in names:
        what = comparison.what if len(names) == 1 else f"{comparison.what}, {name}"
        its_goal = goal if best is None or name == best else None
        if name not in measured:
            yield Row(what, its_goal, f"not measured: {missing[name]}")
            continue
        what += ": the fastest form" if len(names) > 1 and name == best else ""
        ratio = ratio_of_pairs(measured[name], ours, factor, by_ranks=True)
        met = "no goal" if its_goal is None else "yes" if ratio.value >= its_goal else "no"
        met = "not compared: --quick" if quick and its_goal is not None else met
        medians = float(np.median(ours)), factor * float(np.median(measured[name]))
        yield Row(what, its_goal, met, *medians, ratio)


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
