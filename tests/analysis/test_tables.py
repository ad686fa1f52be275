"""One table in every format: digits that the interval supports, LaTeX for a paper, a terminal."""

from __future__ import annotations

import math

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.render.document import Table, page_table
from analysis.render.latex import table_to_latex
from analysis.render.number_text import decimals_of, interval_text, join_intervals
from analysis.render.pages import table_to_markdown
from analysis.render.terminal import SUMMARY_COLUMNS, aligned_lines, columns_that_fit
from analysis.statistics.intervals import Interval

numbers = st.floats(1e-9, 1e9) | st.floats(-1e6, -1e-6)
FRAME = pd.DataFrame(
    {
        "model": ["gat", "gat"],
        "layout": ["seq", "dp2-pp2"],
        "mean_s": [1.234567, 2.0],
        "mean_low": [1.2, None],
        "mean_high": [1.3, None],
        "share_of_50%": [0.5, 0.25],
        "empty": [None, None],
    }
)
TABLE = Table("times", "Seconds a step & more", FRAME, ("Intervals over runs_of_one.",))


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
        (Interval(1234.5, None, None), "1234"),
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
    assert not any("e" in part or (part[0] == "-" and float(part) == 0.0) for part in parts)


def test_bounds_join_the_column_that_they_bound() -> None:
    joined = join_intervals(FRAME)
    assert joined["mean_s"].to_list() == [Interval(1.234567, 1.2, 1.3), 2.0]
    shown = page_table(FRAME, "").shown()
    assert shown.headings == ("model", "layout", "mean (s)", "share of 50%")
    assert shown.texts[0] == ["gat", "seq", "1.23 [1.20, 1.30]", "0.5"]
    assert shown.numbers == (False, False, True, True)


def test_all_formats_have_the_same_values() -> None:
    latex, markdown = table_to_latex(TABLE), table_to_markdown(TABLE)
    printed = "\n".join(aligned_lines(TABLE.shown()))
    for text in (latex, markdown.replace("\\", ""), printed):
        assert "1.23 [1.20, 1.30]" in text and "dp2-pp2" in text and "0.25" in text


def test_latex_is_escaped_and_shared_values_are_a_note() -> None:
    text = table_to_latex(TABLE)
    assert r"\caption{Seconds a step \& more}" in text
    assert r"layout & mean (s) & share of 50\% \\" in text
    assert "All rows: model gat." in text and r"runs\_of\_one" in text
    assert text.count(r"\begin{table") == text.count(r"\end{table") == 1
    assert r"\toprule" in text and r"\begin{tabular}{lrr}" in text


def test_sentences_of_latex_tables_are_broken() -> None:
    frame = pd.DataFrame({"n": [1, 2], "words": ["a sentence of several words", "one more " * 9]})
    text = table_to_latex(Table("long", "Long", frame))
    assert r"\begin{tabular}{rp{0.26\textwidth}}" in text and r"\label{tab:long}" in text


def test_a_wide_table_is_scaled_to_the_page_with_all_columns() -> None:
    frame = pd.DataFrame([{f"measure_{n}_s": n + 0.5 for n in range(20)}, {"measure_0_s": 1.0}])
    text = table_to_latex(Table("wide", "Wide", frame))
    assert "{max width=\\linewidth}\n\\begin{tabular}{" + "r" * 20 + "}" in text
    assert "table*" in text and "table*" not in table_to_latex(TABLE)


@pytest.mark.parametrize("width", [300, 160, 120, 80])
def test_a_narrow_terminal_has_the_fewest_columns_left_out(width: int) -> None:
    row = dict.fromkeys(SUMMARY_COLUMNS, 0.1234) | {"flags": "oversubscribed 3 of 3"}
    row |= dict.fromkeys(("data", "model", "layout"), "synthetic-citation")
    frame = pd.DataFrame([row | {"speedup_low": 0.1, "speedup_high": 0.2}])
    shown = columns_that_fit(frame, SUMMARY_COLUMNS, width)
    assert {"model", "layout", "mean_s", "speedup"} <= set(shown)
    assert shown == [name for name in SUMMARY_COLUMNS if name in shown]
    assert (len(shown) == len(SUMMARY_COLUMNS)) == (width == 300)
    assert len(columns_that_fit(frame, SUMMARY_COLUMNS, width + 40)) >= len(shown)
