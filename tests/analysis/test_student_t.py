"""How far Student's intervals reach, and how many observations a precision needs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from analysis.statistics.power import MOST_REPEATS, repeats_needed, t_quantile


@pytest.mark.parametrize(
    ("freedom", "reach"), [(1, 12.7062), (2, 4.30265), (4, 2.77645), (1e9, 1.95996)]
)
def test_quantiles_are_those_of_the_tables(freedom: float, reach: float) -> None:
    assert float(t_quantile(freedom)) == pytest.approx(reach, abs=1e-4)
    assert float(t_quantile(2, 0.9)) == pytest.approx(2.91999, abs=1e-4)


@pytest.mark.parametrize("spread", [0.003, 0.01, 0.05])
def test_one_repeat_fewer_is_not_enough(spread: float) -> None:
    found = repeats_needed(spread, 0.02)
    assert found is not None and found > 2

    def reach(count: int) -> float:
        return math.expm1(float(t_quantile(count - 1)) * spread / math.sqrt(count))

    assert reach(found) <= 0.02 < reach(found - 1)


def test_two_are_the_fewest_and_some_spreads_are_too_wide() -> None:
    assert repeats_needed(0.0, 0.02) == 2
    assert repeats_needed(2.0, 0.02) is None
    most = 0.02 / (1.96 / np.sqrt(MOST_REPEATS))
    assert repeats_needed(0.98 * most, 0.02) is not None
