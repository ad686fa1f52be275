"""Reads published studies: their numbers, their known defects, and what they claim.

A study is a folder with its printed numbers as CSV, in columns of settings and measures that a run
has too, and a study.yaml, whose keys are the fields of `Study`. A report shows a study only where
its model was run on its data. Queries are those of pandas, over the columns of `study_rows.Row`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import yaml
from pydantic import ConfigDict, TypeAdapter
from pydantic.dataclasses import dataclass

FOLDER = Path(__file__).parent
_KNOWN_KEYS_ALONE = ConfigDict(extra="forbid")


@dataclass(frozen=True, config=_KNOWN_KEYS_ALONE)
class Claim:
    """A published number, or a conclusion, and how the same is measured in a run.

    The rows that `select` chooses are each compared with the row that differs in the settings of
    `pair` alone. It is applied to published rows and to rows of a run, whose table is `none`.
    """

    quantity: str
    """A measure of the rows, or of a pair a key of `compare_study.OF_PAIRS`."""
    select: str
    setting: str
    """Names a comparison, with columns in braces; published and measured ones match by it."""
    table: str
    """The published table, with columns in braces."""
    name: str = ""
    """What the quantity is called; its key unless given."""
    pair: Mapping[str, Any] | None = None
    """The settings of the other row."""
    free: tuple[str, ...] = ()
    """Settings in which the pair may differ as well."""
    text: str = ""
    """The conclusion; empty for a number."""
    expected: Literal["more", "less", "either"] = "more"
    """The side of `nothing` on which the quantity lies if the conclusion holds."""
    nothing: float = 1.0
    """The value of the quantity that makes no difference."""
    negligible: float | None = None
    """Less than this is as good as `nothing`; None where any difference counts."""
    of_devices: bool = False
    """Whether it is about ranks that have a processor or GPU each."""
    bound: float | str | None = None
    """The most that the quantity can be, or the column of the row that has it."""
    verdicts: tuple[tuple[str, str], ...] = ()
    """(query, text) pairs for a published number; the first query that holds gives the text."""


@dataclass(frozen=True, config=_KNOWN_KEYS_ALONE)
class StudyTable:
    """A published table, shown with the run's numbers beside it."""

    name: str
    title: str
    keys: tuple[str, ...]
    """Columns in which published and measured rows are equal."""
    published: Mapping[str, str]
    """Column of the table -> column of published rows."""
    columns: tuple[str, ...]
    """All columns after the keys."""
    paper: tuple[str, ...]
    """Columns for the table in a paper."""
    select: str = "table == table"
    defects: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    only_published: bool = False
    """Whether measured rows that nobody published are left out."""


@dataclass(frozen=True, config=_KNOWN_KEYS_ALONE)
class PublishedFigure:
    """Published points that are drawn in a figure of the same model and data."""

    figure: str
    caption: str
    """What the figure's caption says of the points."""
    select: str = "index == index"
    """The query that selects the published rows which are drawn."""
    file: str = ""
    """The name of a file of points, which are drawn in place of rows."""


@dataclass(frozen=True, config=_KNOWN_KEYS_ALONE)
class Study:
    """One published study."""

    name: str
    citation: str
    what: str
    machine: str
    defects: Mapping[str, str]
    """A short name -> a sentence."""
    models: Mapping[str, str]
    """Our name of each model that it measured -> the study's."""
    data: tuple[str, ...]
    """The data that it measured them on, or generated data of the same shape."""
    measured: str
    """Which rows of a run it is compared with, a query."""
    tables: tuple[StudyTable, ...]
    claims: tuple[Claim, ...]
    published: Mapping[str, tuple[str, ...]]
    """CSV file -> its columns that are settings; the others are measures, and remarks on them."""
    figures: tuple[PublishedFigure, ...]
    conclusions: str = ""
    """The title of the table of conclusions; empty for a study without any."""
    epochs: int = 1
    """How many epochs its seconds are of."""

    def notes(self, *defects: str) -> tuple[str, ...]:
        """A citation, then the named defects: the notes under a table of this study."""
        head = f"Published: {self.citation}. {self.machine}."
        return (head, *(f"Known defect: {self.defects[name]}" for name in defects))


@functools.cache
def published_studies() -> dict[str, Study]:
    """All studies by the first author: raffi, dearing, boca."""
    return {name: _read_study(name) for name in ("raffi", "dearing", "boca")}


def _read_study(name: str) -> Study:
    raw = yaml.safe_load((FOLDER / name / "study.yaml").read_text(encoding="utf-8"))
    return TypeAdapter(Study).validate_python({"name": name, **raw})


def read_published(name: str) -> pd.DataFrame:
    """One printed table, such as `raffi_tables`."""
    return pd.read_csv(FOLDER / name.partition("_")[0] / f"{name}.csv")
