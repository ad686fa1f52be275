"""A page as data: sections of text, lists, tables, pictures; all formats come from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from analysis.render.number_text import format_value, join_intervals
from analysis.statistics.intervals import Interval

_HEADINGS = {
    "microbatches": "micro-batches",
    "samples_per_s": "samples/s",
    "cpu_share": "CPU share",
    "peak_rss_mib": "peak MiB",
    "warmup_dropped": "warm-up steps",
    "profiled_dropped": "profiled steps",
    "speedup_same_m": "speedup, same micro-batches",
    "speedup_from": "interval of",
    "test_at_best_val_accuracy": "test accuracy at the best validation step",
    "val_accuracy": "validation accuracy",
}
_LONGEST = {"word": 28, "sentence": 120}
"""Letters of the texts of these kinds; others are paragraphs."""


@dataclass(frozen=True)
class Text:
    """A paragraph; `kind` is plain, good, warning or bad."""

    text: str
    kind: str = "plain"


@dataclass(frozen=True)
class Bullets:
    items: tuple[str, ...]


class Cell(NamedTuple):
    """A value in a table."""

    text: str
    key: float | str
    """What it is sorted by; an interval by its value."""
    kind: str
    """number, word, sentence or paragraph, which sets the width of its column."""


class Shown(NamedTuple):
    """A table as text: one heading and one flag (is it numbers?) a column, one list a row."""

    headings: list[str]
    numbers: list[bool]
    rows: list[list[Cell]]
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
    paper: Sequence[str] | None = None
    """The few columns that a paper has room for; None for all."""
    columns: Sequence[str] | None = None
    """The columns that a page shows; None for all."""
    keys: int = 1
    """The first columns, which name a row: the heading of its card on a phone."""

    def shown(self) -> Shown:
        """The columns that a page shows, without empty ones."""
        joined = join_intervals(self.frame)
        filled = joined.loc[:, (joined.notna() & (joined != "")).any()]
        columns = [name for name in self.columns or joined if name in filled]
        keys = sum(name in filled for name in list(self.columns or joined)[: self.keys])
        return _as_text(filled[columns], max(1, keys), heading_of)

    def whole(self) -> Shown:
        """All columns, by their names in the CSV file."""
        return _as_text(join_intervals(self.frame), self.keys, str)


def _as_text(frame: pd.DataFrame, keys: int, heading: Callable[[str], str]) -> Shown:
    rows = frame.astype(object).itertuples(index=False, name=None)
    cells = [list(map(_cell, row)) for row in rows]
    columns = list(zip(*cells, strict=True)) or [()] * frame.shape[1]
    # Of a column, the kinds of what is not empty.
    kinds = [{cell.kind for cell in column if cell.text} for column in columns]
    numbers = [found == {"number"} for found in kinds]
    return Shown([heading(str(name)) for name in frame], numbers, cells, keys)


def _cell(item: Any) -> Cell:
    text = format_value(item)
    number = item.value if isinstance(item, Interval) else item
    if text and isinstance(number, int | float | np.number) and not isinstance(number, bool):
        return Cell(text, float(number), "number")
    kinds = (name for name, most in _LONGEST.items() if len(text) <= most)
    return Cell(text, text.casefold(), next(kinds, "paragraph"))


def heading_of(name: str) -> str:
    """A column's name as a heading, with its unit."""
    unit = " (s)" if name.endswith("_s") and name not in _HEADINGS else ""
    # The title of the table of lost time says that its columns are what is lost.
    stem = name.removeprefix("lost_").removesuffix("_s" if unit else "")
    return _HEADINGS.get(name, stem.replace("_", " ") + unit)


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
