"""What is printed of a frame: on a narrow terminal fewer columns, not words cut into pieces."""

from __future__ import annotations

import pandas as pd
import pytest

from analysis.render.terminal import SUMMARY_COLUMNS, columns_that_fit

FRAME = pd.DataFrame(
    [
        {
            name: "oversubscribed 3 of 3"
            if name == "flags"
            else "synthetic-citation"
            if name in ("data", "model", "layout")
            else 0.1234
            for name in SUMMARY_COLUMNS
        }
    ]
)


@pytest.mark.parametrize("width", [300, 160, 120, 80])
def test_the_fewest_columns_are_left_out_that_must_be(width: int) -> None:
    shown = columns_that_fit(FRAME, width)
    assert {"model", "layout", "mean_s", "speedup"} <= set(shown)
    assert shown == [name for name in SUMMARY_COLUMNS if name in shown]
    assert (len(shown) == len(SUMMARY_COLUMNS)) == (width == 300)
    assert len(columns_that_fit(FRAME, width + 40)) >= len(shown)
