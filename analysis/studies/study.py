"""Reads the numbers that others published, and their known defects."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import yaml

from analysis.load.run_data import RunData

FOLDER = Path(__file__).parent
LOG_FOLDER = FOLDER / "raffi" / "logs"


@dataclass(frozen=True)
class PublishedStudy:
    """One published study, as in its study.yaml; `defects` maps a short name to a sentence."""

    name: str
    citation: str
    what: str
    machine: str
    files: dict[str, str]
    defects: dict[str, str]
    models: tuple[str, ...]
    """The models that it measured, by our names."""
    data: tuple[str, ...]
    """The data that it measured them on, or generated data of the same shape."""
    logs: dict[str, int] = field(default_factory=dict)
    """The author's raw logs: file name -> number of the table made from it."""


@functools.cache
def published_studies() -> dict[str, PublishedStudy]:
    """All studies by the first author: raffi, dearing, boca."""
    return {
        name: PublishedStudy(
            name, **yaml.safe_load((FOLDER / name / "study.yaml").read_text(encoding="utf-8"))
        )
        for name in ("raffi", "dearing", "boca")
    }


def studies_of(run: RunData) -> list[str]:
    """The studies whose model was run on their data."""
    measured = set(zip(run.cells["model"], run.cells["data"], strict=True))
    return [
        name
        for name, study in published_studies().items()
        if any((model, data) in measured for model in study.models for data in study.data)
    ]


def _path(name: str) -> Path:
    """The file of a published table, in the folder of the study that its name begins with."""
    return FOLDER / name.partition("_")[0] / f"{name}.csv"


def read_published(name: str) -> pd.DataFrame:
    """One published table, such as `raffi_tables`, with numbers."""
    return pd.read_csv(_path(name))


def read_published_text(name: str) -> pd.DataFrame:
    """One published table as text, which keeps the number of digits published."""
    return pd.read_csv(_path(name), dtype=str, keep_default_na=False)


def study_notes(study: PublishedStudy, *defects: str) -> tuple[str, ...]:
    """A citation, then the named defects: the notes under a table of this study."""
    head = f"Published: {study.citation}. {study.machine}."
    return (head, *(f"Known defect: {study.defects[name]}" for name in defects))


@functools.cache
def _known_logs() -> dict[str, int]:
    tables = published_studies()["raffi"].logs
    return {_digest(LOG_FOLDER / name): table for name, table in tables.items()}


def table_made_from_log(path: Path) -> int | None:
    """The number of Raffi's table that was made from this log; None for other logs."""
    return _known_logs().get(_digest(path))


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes().replace(b"\r\n", b"\n")).hexdigest()


def matches_published_digits(value: float, published: str) -> bool:
    """Whether `value` has the published digits, rounded or cut off.

    That is, it is within one unit of the last published digit.
    """
    decimals = len(published.partition(".")[2])
    return abs(value - float(published)) < 10.0**-decimals
