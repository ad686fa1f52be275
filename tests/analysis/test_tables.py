"""One table in every format: digits that the interval supports, LaTeX for a paper, a terminal."""

from __future__ import annotations

import math

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.render.document import Table
from analysis.render.formats import print_frame, table_to_latex, table_to_markdown
from analysis.render.number_text import decimals_of, interval_text
from analysis.statistics.intervals import Interval

numbers = st.floats(1e-9, 1e9) | st.floats(-1e6, -1e-6)
FRAME = pd.DataFrame(
    {
        "layout": ["seq", "dp2-pp2"],
        "mean_s": [1.234567, 2.0],
        "mean_low": [1.2, None],
        "mean_high": [1.3, None],
        "share_of_50%": [0.5, 0.25],
        "words": ["short", "a sentence of several words, " * 3],
        "empty": [None, None],
    }
)
TABLE = Table("times", "Seconds a step & more", FRAME, ("Intervals over runs_of_one.",))


@pytest.mark.parametrize(
    ("interval", "text"),
    [
        (Interval(1.4137, 1.35213, 1.46499), "1.41 [1.35, 1.46]"),
        (Interval(0.0119462, 0.0119012, 0.0119999), "0.011946 [0.011901, 0.012000]"),
        (Interval(12345.6, 11700.0, 12900.0), "12300 [11700, 12900]"),
        (Interval(0.4, -0.004, 0.9), "0.40 [0.00, 0.90]"),
        (Interval(0.421, 0.013, 13.47), "0.4 [0.0, 13.5]"),
        (Interval(0.98039215, 0.9803921500000001, 0.98039215), "0.98"),
        (Interval(1.36029, None, None), "1.36"),
        (Interval(math.nan, None, None), ""),
    ],
)
def test_digits_follow_the_interval(interval: Interval, text: str) -> None:
    assert interval_text(interval) == text


@given(numbers, st.floats(0, 1), st.floats(1e-5, 1e3))
def test_printed_numbers_are_within_half_a_last_digit_and_in_order(
    low: float, where: float, share: float
) -> None:
    width = abs(low) * share
    high = low + width
    value = min(max(low + where * width, low), high)
    first, _, rest = interval_text(Interval(value, low, high)).partition(" [")
    parts = [first, *rest.removesuffix("]").split(", ")]
    printed = [float(part) for part in parts]
    unit = 10.0 ** -decimals_of(high - low)
    assert printed[0] > 0.0 or value <= 0.0 or low <= 0.0
    for number, shown in zip((value, low, high), printed, strict=True):
        assert abs(number - shown) <= 0.5 * unit * (1 + 1e-6) + 1e-9 * abs(number)
    assert printed[1] <= printed[0] <= printed[2]
    assert printed[1] < printed[2]
    assert not any("e" in part or (part[0] == "-" and float(part) == 0.0) for part in parts)


def test_all_formats_have_the_same_values(capsys: pytest.CaptureFixture[str]) -> None:
    print_frame(FRAME)
    latex, markdown = table_to_latex(TABLE), table_to_markdown(TABLE)
    for text in (latex, markdown.replace("\\", ""), capsys.readouterr().out):
        assert "1.23 [1.20, 1.30]" in text and "dp2-pp2" in text and "0.25" in text


def test_latex_is_escaped_and_breaks_sentences() -> None:
    text = table_to_latex(TABLE)
    assert r"\caption{Seconds a step \& more}" in text and r"\label{tab:times}" in text
    assert r"\begin{tabular}{lrrp{0.26\textwidth}}" in text
    assert r"layout & mean (s) & share of 50\% & words \\" in text
    assert r"runs\_of\_one" in text
