"""Drift: how often it is seen where there is none, and where there is one."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from gnnhpc.validation.audit.drift import DRIFT, most_different_stretch

Noise = Callable[[np.random.Generator, int], NDArray[np.float64]]
"""The logarithms of so many step times, of about standard deviation 1."""


def correlated(by: float) -> Noise:
    """A stationary first-order autoregression."""

    def sample(numbers: np.random.Generator, steps: int) -> NDArray[np.float64]:
        x = numbers.standard_normal(steps)
        for step in range(1, steps):
            x[step] = by * x[step - 1] + math.sqrt(1 - by**2) * x[step]
        return x

    return sample


def skewed(numbers: np.random.Generator, steps: int) -> NDArray[np.float64]:
    """Exponential: many fast steps and few slow ones."""
    return numbers.exponential(size=steps)


def spikes(numbers: np.random.Generator, steps: int) -> NDArray[np.float64]:
    """One step in ten takes much longer."""
    return numbers.standard_normal(steps) + 20.0 * (numbers.random(steps) < 0.1)


def share_flagged(times: Callable[[], NDArray[np.float64]], of: int) -> float:
    """The share of so many series that have a drift."""
    found = [most_different_stretch(times().tolist()) for _ in range(of)]
    return sum(s is not None and s.beyond_chance and abs(s.change) > DRIFT for s in found) / of


HEALTHY = {
    "independent": correlated(0.0),
    "correlated by 0.5": correlated(0.5),
    "correlated by 0.7": correlated(0.7),
    "skewed": skewed,
    "spikes": spikes,
}


@pytest.mark.slow
@pytest.mark.parametrize("noise", HEALTHY)
@pytest.mark.parametrize("steps", [9, 10, 20, 30, 100])
def test_at_most_one_healthy_run_in_a_hundred_is_accused(noise: str, steps: int) -> None:
    # At a rate of 0.5 % more than 1 % of 2000 has a probability of 0.003; the seed is fixed.
    numbers = np.random.default_rng(7)
    of_a_run = partial(HEALTHY[noise], numbers, steps)
    assert share_flagged(lambda: np.exp(0.10 * of_a_run()), of=2000) <= 0.01


@pytest.mark.parametrize(
    ("noise", "steps", "relative", "slow", "by", "power"),
    [
        ("independent", 10, 0.01, slice(5, 10), 0.15, 0.95),
        ("independent", 30, 0.02, slice(10, 20), 0.15, 0.95),
        ("independent", 100, 0.03, slice(50, 100), 0.08, 0.95),
        ("correlated by 0.5", 100, 0.03, slice(50, 100), 0.08, 0.75),
        ("independent", 1000, 0.10, slice(300, 600), 0.10, 0.95),
    ],
)
def test_another_level_is_seen(
    noise: str, steps: int, relative: float, slow: slice, by: float, power: float
) -> None:
    numbers, factor = np.random.default_rng(7), np.ones(steps)
    factor[slow] += by
    of_a_run = partial(HEALTHY[noise], numbers, steps)
    assert share_flagged(lambda: np.exp(relative * of_a_run()) * factor, of=300) >= power


@pytest.mark.parametrize(
    ("slow", "first", "stop"), [(slice(4, 8), 4, 8), (slice(8, 12), 8, 12), (slice(0, 4), 4, 12)]
)
def test_the_stretch_is_the_one_that_was_slow(slow: slice, first: int, stop: int) -> None:
    times = 1.0 + 0.001 * np.random.default_rng(3).standard_normal(12)
    times[slow] *= 1.2
    stretch = most_different_stretch(times.tolist())
    assert stretch is not None
    assert (stretch.first, stretch.stop, stretch.beyond_chance) == (first, stop, True)
    change = 1 / 1.2 - 1 if slow.start == 0 else 0.2
    assert stretch.change == pytest.approx(change, abs=0.005)


@pytest.mark.parametrize(
    "times",
    [[1.5] * 4 + [1.0, 1.001, 0.999, 1.002] * 4, [0.1] * 12],
    ids=["a slow beginning of a fifth, which is warm-up", "equal times"],
)
def test_runs_at_one_level(times: list[float]) -> None:
    stretch = most_different_stretch(times)
    assert stretch is not None and not stretch.beyond_chance


def of_a_machine(numbers: np.random.Generator, steps: int, step_s: float) -> NDArray[np.float64]:
    """Step times beside a process that comes and goes, each for 20 ms on average.

    They are a fifth longer while it is there. Neighbouring steps are correlated besides.
    """
    in_step = round(step_s / 1e-3)
    comes_or_goes = numbers.random((steps, in_step)) < 1e-3 / 0.02
    is_there = np.cumsum(comes_or_goes).reshape(steps, in_step) % 2
    return step_s * (1 + 0.2 * is_there.mean(1)) * np.exp(0.02 * correlated(0.7)(numbers, steps))


SHORT = st.tuples(st.integers(9, 24), st.floats(2e-3, 1e-2))


@given(SHORT, st.integers(0, 10**6))
def test_a_short_run_of_short_steps_shows_no_drift(run: tuple[int, float], seed: int) -> None:
    times = of_a_machine(np.random.default_rng(seed), *run)
    assert most_different_stretch(times.tolist()) is None


@pytest.mark.parametrize(
    ("steps", "step_s"), [(100, 0.003), (400, 0.003), (1500, 0.003), (150, 0.02), (30, 0.2)]
)
def test_runs_beside_a_process_that_comes_and_goes_are_at_one_level(
    steps: int, step_s: float
) -> None:
    numbers = np.random.default_rng(3)
    assert share_flagged(lambda: of_a_machine(numbers, steps, step_s), of=300) <= 0.01


@pytest.mark.parametrize("times", [[1.0] * 8, [1.0] * 11 + [math.nan], [1.0] * 11 + [0.0], []])
def test_what_cannot_be_judged(times: list[float]) -> None:
    assert most_different_stretch(times) is None
