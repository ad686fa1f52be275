"""Reads published studies: their numbers, their known defects, and what they claim.

A study is a folder with CSV files as printed and a study.yaml, whose keys are the fields of
`Study`. A report shows a study only where its model was run on its data.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import yaml
from pydantic import ConfigDict, TypeAdapter
from pydantic.dataclasses import dataclass

from analysis.load.run_data import RunData

FOLDER = Path(__file__).parent
_KNOWN_KEYS_ALONE = ConfigDict(extra="forbid")


@dataclass(frozen=True, config=_KNOWN_KEYS_ALONE)
class PublishedFile:
    """How a printed table maps to the columns of `Study.published`."""

    file: str
    columns: Mapping[str, str]
    """Column of `Study.published` -> column of the file."""
    values: Mapping[str, Mapping[Any, Any]] = field(default_factory=dict)
    """Column -> printed value -> our value."""
    constants: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, config=_KNOWN_KEYS_ALONE)
class Claim:
    """A published number, or a conclusion, and how the same is measured in a run.

    The rows that `select` chooses, a query of pandas, are each compared with the row that differs
    in the settings of `pair` alone. It is applied to published rows and to rows of a run.
    """

    quantity: str
    """A column of the rows, or of a pair a key of `quantities.OF_PAIRS`."""
    select: str
    setting: str
    """Names a comparison, with columns in braces; published and measured ones match by it."""
    name: str = ""
    """What the quantity is called; its key unless given."""
    pair: Mapping[str, Any] | Literal["baseline"] | None = None
    """The settings of the other row; `baseline` is the sequential run in one micro-batch."""
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
    table: str = ""
    """The published table; that of the published row unless given."""
    phase: str = ""
    """The phase unless it is the row's."""
    published_select: str = ""
    """Instead of `select`, for published rows."""
    verdicts: tuple[tuple[str, str], ...] = ()
    """(query, text) pairs for a number; the first query that holds gives the text."""


@dataclass(frozen=True, config=_KNOWN_KEYS_ALONE)
class StudyTable:
    """A published table, shown with the run's numbers beside it."""

    name: str
    title: str
    keys: tuple[str, ...]
    """Columns in which published and measured rows are equal."""
    published: Mapping[str, str]
    """Column of the table -> column of `Study.published`."""
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
    data: tuple[str, ...]
    caption: str
    """What the figure's caption says of the points."""
    file: str = ""
    """The printed table; empty for the rows of `Study.published` with seconds an epoch."""
    select: str = "index == index"
    """Which of its rows, a query with @model, the study's name of it, and @data."""


@dataclass(frozen=True, config=_KNOWN_KEYS_ALONE)
class Study:
    """One published study."""

    name: str
    citation: str
    what: str
    machine: str
    files: Mapping[str, str]
    defects: Mapping[str, str]
    """A short name -> a sentence."""
    models: Mapping[str, str]
    """Our name of each model that it measured -> the study's."""
    data: tuple[str, ...]
    """The data that it measured them on, or generated data of the same shape."""
    measured: str
    """Which rows of a run it is compared with, a query."""
    label: tuple[str, ...]
    """The columns that name a row of a run."""
    label_settings: tuple[str, ...]
    """Settings that the label already has."""
    tables: tuple[StudyTable, ...]
    claims: tuple[Claim, ...]
    published_files: tuple[PublishedFile, ...]
    figures: tuple[PublishedFigure, ...]
    conclusions: str = ""
    """The title of the table of conclusions; empty for a study without any."""
    epochs: int = 1
    """How many epochs its seconds are of."""

    @functools.cached_property
    def published(self) -> pd.DataFrame:
        """All printed rows, in columns that have the names of a run's settings and measures."""
        return pd.concat(map(self._read, self.published_files), ignore_index=True)

    def _read(self, one: PublishedFile) -> pd.DataFrame:
        printed = read_published(one.file)
        frame = pd.DataFrame({name: printed[column] for name, column in one.columns.items()})
        for name, values in one.values.items():
            frame[name] = frame[name].map(values)
        return frame.assign(**one.constants)

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


def studies_of(run: RunData) -> list[Study]:
    """The studies whose model was run on their data."""
    measured = set(zip(run.cells["model"], run.cells["data"], strict=True))
    return [
        study
        for study in published_studies().values()
        if any((model, data) in measured for model in study.models for data in study.data)
    ]


def read_published(name: str) -> pd.DataFrame:
    """One printed table, such as `raffi_tables`."""
    return pd.read_csv(FOLDER / name.partition("_")[0] / f"{name}.csv")
