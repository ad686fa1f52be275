"""A report as plain data: sections of text, lists, tables and figures, rendered elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.render.cell_text import format_value


@dataclass(frozen=True)
class Text:
    """A paragraph; `kind` is how loud it is."""

    text: str
    kind: str = "plain"
    """plain, good, warning or bad."""


@dataclass(frozen=True)
class Bullets:
    items: tuple[str, ...]


@dataclass(frozen=True)
class Value:
    """A table's cell: what is shown, and what it is sorted by."""

    text: str
    key: float | str
    number: bool

    @property
    def kind(self) -> str:
        """How much room it needs: a number, a word, a sentence or a paragraph."""
        if self.number:
            return "number"
        lengths = {"word": 28, "sentence": 120}
        return next((name for name, most in lengths.items() if len(self.text) <= most), "paragraph")


@dataclass(frozen=True)
class TableBlock:
    """Rows of values under named columns; `caption` says what they are, with units."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]

    def is_number(self, column: int) -> bool:
        """Whether a column holds numbers and nothing else but gaps."""
        shown = [row[column] for row in self.rows if row[column].text]
        return bool(shown) and all(value.number for value in shown)


@dataclass(frozen=True)
class Picture:
    """A figure's files, relative to the report's folder where they are named."""

    caption: str
    alt: str
    png: Path
    pdf: Path
    wide: bool = False


Block = Text | Bullets | TableBlock | Picture


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it."""

    id: str
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Document:
    """The whole report; the first section is its first page."""

    title: str
    subtitle: str
    sections: tuple[Section, ...]
    folder: Path = field(default=Path())
    """Where the pictures' paths count from."""


def frame_table(
    frame: pd.DataFrame, caption: str, columns: dict[str, str] | None = None
) -> TableBlock:
    """A table of a frame, without columns that hold nothing; `columns` picks and renames."""
    names = columns if columns is not None else {str(name): str(name) for name in frame.columns}
    filled = frame.columns[(frame.notna() & (frame != "")).any()]
    picked = [name for name in names if name in filled]
    rows = frame[picked].astype(object).itertuples(index=False, name=None)
    return TableBlock(
        caption,
        tuple(names[name] for name in picked),
        tuple(tuple(value(item) for item in row) for row in rows),
    )


def rows_table(caption: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> TableBlock:
    """A table of plain values."""
    return TableBlock(
        caption, tuple(columns), tuple(tuple(value(item) for item in row) for row in rows)
    )


def value(item: object) -> Value:
    """How a value is shown: four significant digits, yes or no, nothing where it is missing."""
    # numpy's own types become Python's.
    plain = item.item() if hasattr(item, "item") else item
    text = format_value(plain)
    if text and isinstance(plain, int | float) and not isinstance(plain, bool):
        return Value(text, float(plain), number=True)
    return Value(text, text.casefold(), number=False)
