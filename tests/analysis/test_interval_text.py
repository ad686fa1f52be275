"""A number is printed with the digits that its interval supports, and no others."""

from __future__ import annotations

import math

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.render.cell_text import format_rows
from analysis.render.interval_text import decimals_of, interval_text, join_intervals
from analysis.statistics.intervals import Interval

numbers = st.floats(1e-9, 1e9) | st.floats(-1e6, -1e-6)


@pytest.mark.parametrize(
    ("interval", "text"),
    [
        (Interval(1.4137, 1.35213, 1.46499), "1.41 [1.35, 1.46]"),
        (Interval(0.011946, 0.007847, 0.018168), "0.012 [0.008, 0.018]"),
        (Interval(0.0119462, 0.0119012, 0.0119999), "0.011946 [0.011901, 0.012000]"),
        (Interval(12345.6, 11700.0, 12900.0), "12300 [11700, 12900]"),
        (Interval(0.4, -0.004, 0.9), "0.40 [0.00, 0.90]"),
        (Interval(0.421, 0.013, 13.47), "0.4 [0.0, 13.5]"),
        (Interval(1.0, 1.0, 1.0), "1"),
        (Interval(0.98039215, 0.9803921500000001, 0.98039215), "0.98"),
        (Interval(1.36029, None, None), "1.36"),
        (Interval(2.0, None, None), "2.00"),
        (Interval(1234.5, None, None), "1234"),
        (Interval(math.nan, None, None), ""),
    ],
)
def test_digits_follow_the_interval(interval: Interval, text: str) -> None:
    assert interval_text(interval) == text


@given(numbers, st.floats(0, 1), st.floats(1e-5, 1e3))
def test_what_is_printed_is_within_half_a_last_digit_and_in_order(
    low: float, where: float, share: float
) -> None:
    width = abs(low) * share
    high = low + width
    value = min(max(low + where * width, low), high)
    text = interval_text(Interval(value, low, high))
    first, _, rest = text.partition(" [")
    parts = [first, *rest.removesuffix("]").split(", ")]
    printed = [float(part) for part in parts]
    unit = 10.0 ** -decimals_of(high - low)
    # The width has two digits before that of the last place, so 10 to 100 of them.
    assert 9.99 <= (high - low) / unit <= 100.1
    assert printed[0] > 0.0 or value <= 0.0 or low <= 0.0
    for number, shown in zip((value, low, high), printed, strict=True):
        assert abs(number - shown) <= 0.5 * unit * (1 + 1e-6) + 1e-9 * abs(number)
    assert printed[1] <= printed[0] <= printed[2]
    assert printed[1] < printed[2]
    assert len({len(part.partition(".")[2]) for part in parts}) == 1
    assert not any("e" in part or (part[0] == "-" and float(part) == 0.0) for part in parts)


def test_bounds_join_the_column_that_they_bound() -> None:
    frame = pd.DataFrame(
        {
            "mean_s": [1.234567, 2.0, None],
            "mean_low": [1.2, None, None],
            "mean_high": [1.3, None, None],
            "low": [1, 2, 3],
            "bound": [1.0, 1.6666666, 2.5],
            "whole": [1.0, 2.0, None],
        }
    )
    joined = join_intervals(frame)
    assert list(joined.columns) == ["mean_s", "low", "bound", "whole"]
    assert joined["mean_s"].to_list()[:2] == [Interval(1.234567, 1.2, 1.3), 2.0]
    assert format_rows(joined) == [
        ["1.23 [1.20, 1.30]", "1", "1", "1"],
        ["2", "2", "1.667", "2"],
        ["", "3", "2.5", ""],
    ]
