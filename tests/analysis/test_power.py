"""How many repeats show a difference, and where users read it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from analysis.statistics.intervals import ratio_in_words, ratio_of_pairs, t_bounds
from analysis.statistics.power import POWER, repeats_to_show


@pytest.mark.parametrize("spread", [0.03, 0.1])
def test_so_many_repeats_show_the_difference_four_times_in_five(spread: float) -> None:
    known = np.random.default_rng(0).normal(0.0, spread, 6)
    known = (known - known.mean()) / known.std(ddof=1) * spread
    low, high = t_bounds(known)
    repeats = repeats_to_show(0.05, 6, float(high - low) / 2, 0.95)
    assert repeats is not None
    rng = np.random.default_rng(1)
    lows, _ = t_bounds(rng.normal(math.log(1.05), spread, (4000, repeats)))
    assert POWER - 0.05 < (lows > 0.0).mean() < POWER + 0.1


def test_a_difference_that_is_not_shown_names_the_repeats_that_would_show_it() -> None:
    rng = np.random.default_rng(2)
    top, bottom = np.exp(rng.normal(0.0, 0.1, (2, 4)))
    words = ratio_in_words(ratio_of_pairs(top, bottom))
    assert words.startswith("no difference shown") and "repeats show one of 5%" in words


def test_no_number_of_repeats_shows_a_difference_in_very_wide_intervals() -> None:
    assert repeats_to_show(0.05, 2, 1e3, 0.95) is None
