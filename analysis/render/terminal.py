"""Prints a frame: a rich table on a terminal, aligned plain text in a pipe."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence

import pandas as pd

from analysis.render.cell_text import format_rows

SUMMARY_COLUMNS = (
    "model",
    "data",
    "layout",
    "microbatches",
    "phase",
    "n",
    "median_s",
    "mean_s",
    "samples_per_s",
    "speedup",
    "speedup_low",
    "speedup_high",
    "bound",
    "efficiency",
    "bubble",
    "flags",
)
LOG_COLUMNS = (
    "log",
    "layout",
    "microbatches",
    "phase",
    "n",
    "mean_s",
    "std_s",
    "min_s",
    "max_s",
    "median_s",
    "speedup",
    "bound",
    "verdict",
)
_LEAST_NEEDED = (
    "n",
    "bubble",
    "median_s",
    "samples_per_s",
    "efficiency",
    "flags",
    "data",
    "bound",
    "speedup_low",
    "speedup_high",
)
"""Columns that a narrow terminal does without, in this order; summary.csv has all of them."""
_SHORT = {
    "microbatches": "m",
    "speedup_low": "low",
    "speedup_high": "high",
    "samples_per_s": "samples/s",
}


def summary_columns(settings: Sequence[str]) -> tuple[str, ...]:
    """With these settings, in which rows differ, before the phase."""
    place = SUMMARY_COLUMNS.index("phase")
    return (*SUMMARY_COLUMNS[:place], *settings, *SUMMARY_COLUMNS[place:])


def print_frame(frame: pd.DataFrame, columns: Sequence[str]) -> None:
    """Print `columns` of a frame, without empty ones; a narrow terminal gets fewer."""
    filled = frame[[name for name in columns if name in frame]]
    filled = filled.loc[:, (filled.notna() & (filled != "")).any()]
    if not sys.stdout.isatty():
        print("\n".join(aligned_lines(*_texts(filled))))
        return
    shown = columns_that_fit(filled, shutil.get_terminal_size().columns)
    _print_rich_table(*_texts(filled[shown]))
    if left := [_SHORT.get(name, name) for name in map(str, filled) if name not in shown]:
        print(f"not shown on {shutil.get_terminal_size().columns} columns: {', '.join(left)}")


def columns_that_fit(frame: pd.DataFrame, width: int) -> list[str]:
    """The columns whose lines are at most `width` long, as far as some may be left out."""
    shown = [str(name) for name in frame.columns]
    for name in _LEAST_NEEDED:
        if max(map(len, aligned_lines(*_texts(frame[shown])))) <= width:
            break
        shown = [other for other in shown if other != name]
    return shown


def _texts(frame: pd.DataFrame) -> tuple[list[str], list[list[str]], list[bool]]:
    """Header, rows, and which columns are numbers."""
    header = [_SHORT.get(name, name) for name in map(str, frame.columns)]
    numeric = [pd.api.types.is_numeric_dtype(frame[name]) for name in frame.columns]
    return header, [list(row) for row in format_rows(frame)], numeric


def aligned_lines(
    header: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[bool]
) -> list[str]:
    """Lines with aligned columns, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    return [
        "  ".join(
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(row, widths, numeric, strict=True)
        ).rstrip()
        for row in [header, *rows]
    ]


def _print_rich_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[bool]
) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for name, right in zip(header, numeric, strict=True):
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(text) for text in row))
    Console().print(table)
