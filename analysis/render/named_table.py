"""A table with the name of its files, a title and notes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd

from analysis.statistics.intervals import Interval


@dataclass(frozen=True)
class NamedTable:
    """A table that is written to files of its own; `notes` are printed under it."""

    name: str
    """File name without ending."""
    title: str
    frame: pd.DataFrame
    notes: tuple[str, ...] = ()
    paper: pd.DataFrame | None = None
    """The few columns that a paper has room for; None for those of `frame`."""


def is_number_column(column: pd.Series[Any]) -> bool:
    """Whether a column is aligned as numbers, alone or with their intervals."""
    if any(isinstance(value, Interval) for value in column):
        return True
    return pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)
