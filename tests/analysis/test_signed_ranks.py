"""Intervals of pairs by signed ranks: exact for few, robust, as often right as they say."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.statistics.pairs import Repeat
from analysis.statistics.sample import Sample
from analysis.statistics.signed_ranks import signed_rank_interval


def test_of_six_pairs_the_bounds_are_those_of_all_signs_tried() -> None:
    """Of 64 equally likely signs one has no positive rank: 1/64 a side, and no less."""
    differences = np.array([0.5, 1.0, 2.0, 3.0, 5.0, 8.0])
    found = signed_rank_interval(differences, 1.0 - 2.0 / 64.0)
    assert found is not None
    centre, low, high = found
    assert (low, high) == (0.5, 8.0)
    pairs = itertools.combinations_with_replacement(differences, 2)
    assert centre == np.median([(a + b) / 2.0 for a, b in pairs])
    assert signed_rank_interval(differences, 1.0 - 1.9 / 64.0) is None


@pytest.mark.parametrize(("pairs", "noise"), [(8, "normal"), (20, "cauchy"), (60, "laplace")])
def test_it_holds_as_often_as_it_says_whatever_the_tails(pairs: int, noise: str) -> None:
    rng = np.random.default_rng(2)
    draw = {
        "normal": rng.standard_normal,
        "cauchy": rng.standard_cauchy,
        "laplace": lambda size: rng.laplace(size=size),
    }[noise]
    held = 0
    for _ in range(2_000):
        found = signed_rank_interval(draw(pairs), 0.95)
        assert found is not None
        held += found[1] <= 0.0 <= found[2]
    # Discrete, so it holds a little more; 3.3 standard deviations of a binomial.
    assert 0.95 - 0.016 <= held / 2_000 <= 0.97 + 0.013


@given(st.lists(st.floats(-5, 5), min_size=6, max_size=30), st.floats(-2, 2))
def test_it_moves_with_the_differences(values: list[float], by: float) -> None:
    one = signed_rank_interval(np.array(values), 0.9)
    other = signed_rank_interval(np.array(values) + by, 0.9)
    assert one is not None and other is not None
    assert np.allclose(np.array(other) - np.array(one), by)
    assert one[1] <= one[0] <= one[2]


def test_two_disturbed_repeats_do_not_hide_what_sixteen_show() -> None:
    rng = np.random.default_rng(0)
    seconds = 1.0 + 0.01 * rng.standard_normal((2, 18))
    seconds[1] *= 1.05
    seconds[1, 3], seconds[0, 9] = 3.0, 2.0
    repeats = [Repeat(0, number) for number in range(18)]
    before, after = (Sample([[value] * 5 for value in side], repeats) for side in seconds)
    plain = after.mean_over(before)
    ranked = after.mean_over(before, by_ranks=True)
    assert not plain.excludes(1.0)
    assert ranked.low is not None and ranked.low > 1.03
    assert ranked.basis == "18 pairs, by ranks"
    few = [Sample(side.runs[:3], repeats[:3]) for side in (before, after)]
    assert few[1].mean_over(few[0], by_ranks=True) == few[1].mean_over(few[0])
