"""The measurements that others published, as data, with what is known to be wrong with them."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import yaml

FOLDER = Path(__file__).parents[1] / "published"
LOG_FOLDER = FOLDER / "raffi_logs"


@dataclass(frozen=True)
class PublishedStudy:
    """One published study: where it is from, and its known defects, short name to sentence."""

    name: str
    citation: str
    what: str
    machine: str
    files: dict[str, str]
    defects: dict[str, str]
    logs: dict[str, int] = field(default_factory=dict)
    """Raw logs that are kept, and the number of the table printed from each."""


@functools.cache
def published_studies() -> dict[str, PublishedStudy]:
    """All studies by short name: raffi, dearing, boca, torchgpipe."""
    raw = yaml.safe_load((FOLDER / "sources.yaml").read_text(encoding="utf-8"))
    return {name: PublishedStudy(name, **content) for name, content in raw.items()}


def read_published(name: str) -> pd.DataFrame:
    """One published table, such as `raffi_tables`, as numbers."""
    return pd.read_csv(FOLDER / f"{name}.csv")


def read_published_text(name: str) -> pd.DataFrame:
    """One published table as printed: text, so that the digits given can be counted."""
    return pd.read_csv(FOLDER / f"{name}.csv", dtype=str, keep_default_na=False)


def study_notes(study: PublishedStudy, *defects: str) -> tuple[str, ...]:
    """A citation, then the named defects: the notes under a table of this study."""
    head = f"Published: {study.citation}. {study.machine}."
    return (head, *(f"Known defect: {study.defects[name]}" for name in defects))


@functools.cache
def _known_logs() -> dict[str, int]:
    tables = published_studies()["raffi"].logs
    return {_digest(LOG_FOLDER / name): table for name, table in tables.items()}


def table_made_from_log(path: Path) -> int | None:
    """The number of Raffi's table that was printed from this log, if it is one of his."""
    return _known_logs().get(_digest(path))


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes().replace(b"\r\n", b"\n")).hexdigest()


def matches_published_digits(value: float, printed: str) -> bool:
    """Whether `value` gives the digits printed, rounded or cut off: authors do both.

    That is, it lies within one unit of the last digit printed.
    """
    decimals = len(printed.partition(".")[2])
    return abs(value - float(printed)) < 10.0**-decimals
