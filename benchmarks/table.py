"""The table: its rows, whether they meet their goals, and how they are written and shown."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.ratios import FEWEST, Compared
from gnnhpc.records.provenance import cpu_model, git_commit
from gnnhpc.records.run_paths import write_atomically

COLUMNS = ("what", "ours", "reference", "ratio", "ratio_low", "ratio_high", "goal", "met")


@dataclass(frozen=True)
class Row:
    """One thing measured; `goal` is the least ratio, none where a row only explains others."""

    what: str
    compared: Compared | None
    goal: float | None
    missing: str | None = None
    """Why there is no measurement."""
    quick: bool = False
    """Measured in small, where goals mean nothing."""

    @property
    def met(self) -> str:
        if self.compared is None:
            return f"not measured: {self.missing}"
        if self.goal is None:
            return "no goal"
        if self.quick:
            return "not judged: --quick"
        return "yes" if self.compared.ratio.value >= self.goal else "no"

    @property
    def outcome(self) -> str:
        if self.compared is None:
            return self.met
        ratio = self.compared.ratio
        return f"{ratio.value:.4g} ({ratio.low:.4g} to {ratio.high:.4g}), {self.met}"

    def cells(self) -> tuple[str, ...]:
        goal = "" if self.goal is None else f"{self.goal:g}"
        if self.compared is None:
            return (self.what, "", "", "", "", "", goal, self.met)
        found = self.compared
        numbers = (found.ours, found.reference)
        ratios = (found.ratio.value, found.ratio.low, found.ratio.high)
        return (
            self.what,
            *(f"{number:.5g}" for number in numbers),
            *(f"{ratio:.4g}" for ratio in ratios),
            goal,
            self.met,
        )


Parts = dict[str, Callable[[], Iterator[Row]]]
"""What a group of benchmarks measures, one after another; each may fail alone."""


def not_measured(what: str, goal: float | None, why: str) -> Row:
    return Row(what, None, goal, why)


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """All rows, or the file as it was."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(row.cells() for row in rows)
    write_atomically(path, text.getvalue())


def show(rows: Sequence[Row], console: Console) -> None:
    """The same for a person, goals missed in red."""
    load = os.getloadavg()[0]
    table = Table(
        title=f"{cpu_model()}, {len(os.sched_getaffinity(0))} CPUs, load {load:.1f}, "
        f"commit {(git_commit() or 'unknown')[:12]}",
        caption="ratio = reference / ours, goal = the least that will do; intervals are 95 % "
        f"bootstrap of the median, of fewer than {FEWEST} pairs the lowest to the highest",
        title_justify="left",
        caption_justify="left",
    )
    for column in COLUMNS:
        table.add_column(column, justify="left" if column in ("what", "met") else "right")
    for row in rows:
        table.add_row(*row.cells(), style="red" if row.met == "no" else None)
    console.print(table)
