"""Values as text: four significant digits, yes or no, nothing for what is missing.

A value with an interval has the digits that the interval supports.
"""

from __future__ import annotations

import math
import numbers
from typing import Any

import numpy as np
import pandas as pd

from analysis.render.interval_text import interval_text, significant
from analysis.statistics.intervals import Interval

DIGITS = 4


def format_value(value: Any) -> str:
    """One value as text; missing values are empty."""
    if value is None or value is pd.NA:
        return ""
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, Interval):
        return interval_text(value)
    if isinstance(value, numbers.Real):
        return _format_number(float(value))
    return str(value)


def _format_number(number: float) -> str:
    """Of a number with more digits four, the last of which may be zeros; others as they are.

    Those are exact, or were published so.
    """
    if math.isnan(number):
        return ""
    if number.is_integer() and abs(number) < 1e15:
        return str(int(number))
    short = f"{number:.{DIGITS}g}"
    if float(short) == number and "e" not in short:
        return short
    return significant(number, DIGITS)


def format_rows(frame: pd.DataFrame) -> list[list[str]]:
    """All rows of a frame as text."""
    return [
        [format_value(value) for value in row] for row in frame.itertuples(index=False, name=None)
    ]
