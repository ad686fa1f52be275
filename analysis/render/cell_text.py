"""Values as text: four significant digits, yes or no, nothing for what is missing.

A value with an interval has the digits that the interval supports.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from analysis.render.interval_text import interval_text, significant
from analysis.stats.intervals import Interval

DIGITS = 4


def format_value(value: Any, *, fractions: bool = False) -> str:
    """One value as text; missing values are empty.

    With `fractions`, a whole number has decimals too, as its neighbours in a column have.
    """
    if value is None or value is pd.NA:
        return ""
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, Interval):
        return interval_text(value)
    if isinstance(value, numbers.Real):
        return _format_number(float(value), fractions)
    return str(value)


def _format_number(number: float, fractions: bool) -> str:
    if math.isnan(number):
        return ""
    if number.is_integer() and abs(number) < 1e15 and not (fractions and number):
        return str(int(number))
    return significant(number, DIGITS)


def has_fractions(column: Iterable[Any]) -> bool:
    """Whether a column has a number that is not whole."""
    return any(
        isinstance(value, numbers.Real)
        and math.isfinite(float(value))
        and not float(value).is_integer()
        for value in column
    )


def format_rows(frame: pd.DataFrame) -> list[list[str]]:
    """All rows of a frame as text, the numbers of a column alike."""
    columns = []
    for number in range(frame.shape[1]):
        values = frame.iloc[:, number].to_list()
        fractions = has_fractions(values)
        columns.append([format_value(value, fractions=fractions) for value in values])
    return [list(row) for row in zip(*columns, strict=True)]
