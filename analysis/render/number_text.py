"""Numbers as text, with as many digits as their interval supports.

A value with an interval is rounded to two significant digits of the interval's width, and so are
both bounds. A value without one has four significant digits.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from analysis.statistics.intervals import Interval

_DIGITS = 4
_INTERVAL_DIGITS = 2
"""Significant digits of an interval's width that are printed."""
_BARE_DIGITS = 3
"""Significant digits of an estimate without an interval."""
_NO_WIDTH = 1e-6
"""Relative width of an interval that is rounding alone, as of the baseline over itself."""


def format_value(value: Any) -> str:
    """One value as text: yes or no for booleans, nothing for what is missing."""
    if isinstance(value, Interval):
        return interval_text(value)
    if value is None or pd.isna(value):
        return ""
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, int | float | np.number):
        return _number_text(float(value))
    return str(value)


def _number_text(number: float) -> str:
    """A number of few digits is exact, or was published so, and stays as it is."""
    if number.is_integer() and abs(number) < 1e15:
        return str(int(number))
    short = f"{number:.{_DIGITS}g}"
    if float(short) == number and "e" not in short:
        return short
    return significant(number, _DIGITS)


def interval_text(interval: Interval) -> str:
    """`1.41 [1.35, 1.46]`; three significant digits alone where there is no interval."""
    value, low, high = interval.value, interval.low, interval.high
    if not math.isfinite(value):
        return ""
    if low is None or high is None:
        return significant(value, _BARE_DIGITS)
    if high - low <= _NO_WIDTH * abs(value):
        return f"{value:.{_BARE_DIGITS}g}"
    decimals = decimals_of(high - low)
    if low > 0.0:
        # A positive value is never shown as 0, however wide its interval.
        decimals = max(decimals, -math.floor(math.log10(value)))
    shown, *bounds = (_rounded(number, decimals) for number in (value, low, high))
    return f"{shown} [{', '.join(bounds)}]"


def decimals_of(width: float) -> int:
    """Decimal places at which `width` > 0 has two significant digits; negative: tens, hundreds."""
    return _INTERVAL_DIGITS - 1 - math.floor(math.log10(width))


def _rounded(number: float, decimals: int) -> str:
    """The number as text, without an exponent and without a minus zero."""
    return f"{round(number, decimals) + 0.0:.{max(0, decimals)}f}"


def significant(number: float, digits: int) -> str:
    """`number` to that many significant digits, trailing zeros kept, large ones in full."""
    text = f"{number:#.{digits}g}"
    return f"{number:.0f}" if "e+" in text else text.removesuffix(".")


def join_intervals(frame: pd.DataFrame) -> pd.DataFrame:
    """`frame` with the columns x (or x_s), x_low and x_high as one column of `Interval`.

    A value without bounds, which may be a published one, stays a number.
    """
    joined = frame.copy()
    for name in map(str, frame.columns):
        low, high = (f"{name.removesuffix('_s')}_{end}" for end in ("low", "high"))
        if {low, high} <= set(frame.columns):
            cells = [
                value if pd.isna(a) or pd.isna(b) else Interval(value, float(a), float(b))
                for value, a, b in zip(frame[name], frame[low], frame[high], strict=True)
            ]
            joined[name] = pd.Series(cells, index=frame.index, dtype=object)
            joined = joined.drop(columns=[low, high])
    return joined
