"""Prints a table: what fits on a terminal, everything in a pipe."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence

import pandas as pd

from analysis.render.document import Shown, page_table

SUMMARY_COLUMNS = (
    *("model", "data", "layout", "microbatches", "phase", "n", "median_s", "mean_s"),
    *("samples_per_s", "speedup", "bound", "efficiency", "bubble", "flags"),
)
LOG_COLUMNS = (
    *("log", "layout", "microbatches", "phase", "n", "mean_s", "std_s", "min_s", "max_s"),
    *("median_s", "speedup", "bound", "verdict"),
)
_LEAST_NEEDED = (
    *("n", "bubble", "median_s", "samples_per_s", "efficiency", "flags", "data", "bound"),
)
"""Columns that a narrow terminal leaves out, in this order; summary.csv has all of them."""
_SHORT = {"microbatches": "m", "samples_per_s": "samples/s"}


def summary_columns(settings: Sequence[str]) -> tuple[str, ...]:
    """The columns with these settings, in which rows differ, before the phase."""
    place = SUMMARY_COLUMNS.index("phase")
    return (*SUMMARY_COLUMNS[:place], *settings, *SUMMARY_COLUMNS[place:])


def print_frame(frame: pd.DataFrame, columns: Sequence[str]) -> None:
    """Print `columns` of a frame, without empty ones; a narrow terminal gets fewer."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 10_000
    shown = columns_that_fit(frame, columns, width)
    print("\n".join(aligned_lines(_shown(frame, shown))))
    if left := [_SHORT.get(name, name) for name in columns if name not in shown and name in frame]:
        print(f"not shown on {width} columns: {', '.join(left)}")


def columns_that_fit(frame: pd.DataFrame, columns: Sequence[str], width: int) -> list[str]:
    """The columns whose lines are at most `width` long, as far as some may be left out."""
    shown = list(columns)
    for name in _LEAST_NEEDED:
        if max(map(len, aligned_lines(_shown(frame, shown)))) <= width:
            break
        shown = [other for other in shown if other != name]
    return shown


def _shown(frame: pd.DataFrame, columns: Sequence[str]) -> Shown:
    """These columns, with the bounds of the speedup's interval."""
    headings = {name: _SHORT.get(name, name) for name in columns}
    bounds = ("speedup_low", "speedup_high") if "speedup" in columns else ()
    kept = [name for name in (*columns, *bounds) if name in frame]
    return page_table(frame[kept], "", headings).shown()


def aligned_lines(shown: Shown) -> list[str]:
    """A line of headings and one a row, with numbers to the right."""
    table = [list(shown.headings), *shown.texts]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(
            text.rjust(width) if number else text.ljust(width)
            for text, width, number in zip(row, widths, shown.numbers, strict=True)
        ).rstrip()
        for row in table
    ]
