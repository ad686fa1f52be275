"""A document as data: sections of text, lists, tables and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.render.cell_text import format_value
from analysis.render.interval_text import join_intervals
from analysis.statistics.intervals import Interval


@dataclass(frozen=True)
class Text:
    """A paragraph; `kind` sets its emphasis."""

    text: str
    kind: str = "plain"
    """plain, good, warning or bad."""


@dataclass(frozen=True)
class Bullets:
    items: tuple[str, ...]


@dataclass(frozen=True)
class Value:
    """A value in a table: its text and its key for sorting."""

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


@dataclass(frozen=True)
class TableBlock:
    """A table in a document; the caption includes the units."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]
    keys: int = 1
    """The first columns, which name a row: on a phone the heading of its card."""

    def is_number(self, column: int) -> bool:
        """Whether a column has numbers and empty values only."""
        shown = [row[column] for row in self.rows if row[column].text]
        return bool(shown) and all(as_value.number for as_value in shown)


@dataclass(frozen=True)
class Mark:
    """A place in a picture that says something when it is pointed at."""

    x: float
    """From the left, as a share of the picture's width."""
    y: float
    """From the top, as a share of its height."""
    text: str


@dataclass(frozen=True)
class Picture:
    """A figure's files, and what its marks say."""

    caption: str
    alt: str
    png: Path
    pdf: Path
    wide: bool = False
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True)
class Beside:
    """Pictures with a table beside them, or below where there is no room."""

    pictures: tuple[Picture, ...]
    table: TableBlock


@dataclass(frozen=True)
class Folded:
    """Blocks behind a line that opens them; open on paper."""

    title: str
    blocks: tuple[Block, ...]


Block = Text | Bullets | TableBlock | Picture | Beside | Folded


@dataclass(frozen=True)
class Section:
    """A heading with its blocks."""

    id: str
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Document:
    """A whole document; the first section is its first page."""

    title: str
    subtitle: str
    sections: tuple[Section, ...]
    folder: Path = field(default=Path())
    """The folder that pictures' paths are relative to in Markdown."""


def frame_table(
    frame: pd.DataFrame, caption: str, columns: dict[str, str] | None = None, keys: int = 1
) -> TableBlock:
    """A table of a frame without its empty columns; `columns` maps a name to its heading.

    Columns x, x_low and x_high are one, as `1.41 [1.35, 1.46]`. The first `keys` of `columns`
    name a row.
    """
    joined = join_intervals(frame)
    names = columns if columns is not None else {str(name): str(name) for name in joined.columns}
    filled = joined.columns[(joined.notna() & (joined != "")).any()]
    picked = [name for name in names if name in filled]
    rows = joined[picked].astype(object).itertuples(index=False, name=None)
    return TableBlock(
        caption,
        tuple(names[name] for name in picked),
        tuple(tuple(as_value(item) for item in row) for row in rows),
        max(1, sum(name in filled for name in list(names)[:keys])),
    )


def rows_table(caption: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> TableBlock:
    """A table of plain values."""
    return TableBlock(
        caption, tuple(columns), tuple(tuple(as_value(item) for item in row) for row in rows)
    )


def as_value(item: object) -> Value:
    """A value as it is shown: its digits as `format_value` has them, yes or no, empty if missing.

    One with an interval is sorted by itself.
    """
    # From a numpy type to a Python type.
    plain = item.item() if hasattr(item, "item") else item
    text = format_value(plain)
    if text and isinstance(plain, Interval):
        return Value(text, plain.value, number=True)
    if text and isinstance(plain, int | float) and not isinstance(plain, bool):
        return Value(text, float(plain), number=True)
    return Value(text, text.casefold(), number=False)
