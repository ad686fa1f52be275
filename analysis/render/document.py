"""A page as data: sections of text, lists, tables, pictures; all formats come from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from analysis.render.number_text import format_value, join_intervals
from analysis.statistics.intervals import Interval


@dataclass(frozen=True)
class Text:
    """A paragraph; `kind` is plain, good, warning or bad."""

    text: str
    kind: str = "plain"


@dataclass(frozen=True)
class Bullets:
    items: tuple[str, ...]


class Cell(NamedTuple):
    """A value in a table: its text, its key for sorting, and whether it is a number."""

    text: str
    key: float | str
    number: bool

    @property
    def kind(self) -> str:
        """number, word, sentence or paragraph, which sets the width of its column."""
        if self.number:
            return "number"
        lengths = {"word": 28, "sentence": 120}
        return next((name for name, most in lengths.items() if len(self.text) <= most), "paragraph")


class Shown(NamedTuple):
    """A table as text: one heading and one flag (is it numbers?) a column, one tuple a row."""

    headings: tuple[str, ...]
    numbers: tuple[bool, ...]
    rows: tuple[tuple[Cell, ...], ...]
    keys: int

    @property
    def texts(self) -> list[list[str]]:
        return [[cell.text for cell in row] for row in self.rows]


@dataclass(frozen=True)
class Table:
    """A table; columns x, x_low and x_high are shown as one, such as `1.41 [1.35, 1.46]`."""

    name: str
    """File name without ending; empty for a table that has no files of its own."""
    title: str
    frame: pd.DataFrame
    """All digits."""
    notes: tuple[str, ...] = ()
    paper: pd.DataFrame | None = None
    """The few columns that a paper has room for; None for those of `frame`."""
    headings: Mapping[str, str] | None = None
    """The columns that a page shows, with their headings; None for all, by their names."""
    keys: int = 1
    """The first columns, which name a row: the heading of its card on a phone."""

    def shown(self, *, all_columns: bool = False) -> Shown:
        """The columns of `headings`, without empty ones; or all columns by their names."""
        joined, keys = join_intervals(self.frame), self.keys
        names = {
            name: name if all_columns else heading_of(name) for name in map(str, joined.columns)
        }
        if not all_columns:
            names = names if self.headings is None else dict(self.headings)
            filled = joined.columns[(joined.notna() & (joined != "")).any()]
            keys = sum(name in filled for name in list(names)[:keys])
            names = {name: heading for name, heading in names.items() if name in filled}
        rows = joined[list(names)].astype(object).itertuples(index=False, name=None)
        cells = tuple(tuple(map(as_cell, row)) for row in rows)
        numbers = tuple(_are_numbers([row[place] for row in cells]) for place in range(len(names)))
        return Shown(tuple(names.values()), numbers, cells, max(1, keys))


def heading_of(name: str) -> str:
    """A column's name as a heading, with its unit."""
    known = {
        "microbatches": "micro-batches",
        "samples_per_s": "samples/s",
        "cpu_share": "CPU share",
        "peak_rss_mib": "peak MiB",
        "warmup_dropped": "warm-up steps",
        "profiled_dropped": "profiled steps",
        "redone": "steps redone",
        "speedup_same_m": "speedup, same micro-batches",
        "speedup_from": "interval of",
        "test_at_best_val_accuracy": "test accuracy at the best validation step",
        "val_accuracy": "validation accuracy",
    }
    unit = " (s)" if name.endswith("_s") and name not in known else ""
    # The title of the table of lost time says that its columns are what is lost.
    stem = name.removeprefix("lost_").removesuffix("_s" if unit else "")
    return known.get(name, stem.replace("_", " ") + unit)


@dataclass(frozen=True)
class Picture:
    """A figure's files."""

    caption: str
    alt: str
    png: Path
    pdf: Path
    wide: bool = False


@dataclass(frozen=True)
class Beside:
    """Pictures with a table beside them, or below where there is no room."""

    pictures: tuple[Picture, ...]
    table: Table


@dataclass(frozen=True)
class Folded:
    """Blocks behind a line that opens them; open on paper."""

    title: str
    blocks: tuple[Block, ...]


Block = Text | Bullets | Table | Picture | Beside | Folded


@dataclass(frozen=True)
class Section:
    """A heading with its blocks."""

    id: str
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Document:
    """A whole page; the first section is what a reader sees first."""

    title: str
    subtitle: str
    sections: tuple[Section, ...]
    folder: Path = field(default=Path())
    """The folder that pictures' paths are relative to in Markdown."""


def page_table(
    frame: pd.DataFrame,
    title: str,
    columns: Sequence[str] | Mapping[str, str] | None = None,
    keys: int = 1,
) -> Table:
    """A table of these columns, or of all, that has no files of its own."""
    if columns is not None and not isinstance(columns, Mapping):
        columns = {name: heading_of(name) for name in columns}
    return Table("", title, frame, headings=columns, keys=keys)


def rows_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    """A table of plain values."""
    return page_table(pd.DataFrame(list(rows), columns=list(columns), dtype=object), title)


def as_cell(item: Any) -> Cell:
    """A value as it is shown; one with an interval is sorted by itself."""
    plain = item.item() if hasattr(item, "item") else item
    text = format_value(plain)
    if text and isinstance(plain, Interval):
        return Cell(text, plain.value, True)
    if text and isinstance(plain, int | float) and not isinstance(plain, bool):
        return Cell(text, float(plain), True)
    return Cell(text, text.casefold(), False)


def _are_numbers(cells: Sequence[Cell]) -> bool:
    filled = [cell for cell in cells if cell.text]
    return bool(filled) and all(cell.number for cell in filled)
