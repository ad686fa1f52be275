"""Values as text: four significant digits, yes or no, nothing for what is missing."""

from __future__ import annotations

import math
import numbers
from typing import Any

import numpy as np
import pandas as pd

DIGITS = 4


def format_value(value: Any) -> str:
    """One value as text; missing values are empty."""
    if value is None or value is pd.NA:
        return ""
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, numbers.Real):
        return _format_number(float(value))
    return str(value)


def _format_number(number: float) -> str:
    if math.isnan(number):
        return ""
    if number.is_integer() and abs(number) < 1e15:
        return str(int(number))
    text = f"{number:.{DIGITS}g}"
    return f"{number:.0f}" if "e+" in text else text


def format_rows(frame: pd.DataFrame) -> list[list[str]]:
    """All rows of a frame as text."""
    return [
        [format_value(value) for value in row] for row in frame.itertuples(index=False, name=None)
    ]
