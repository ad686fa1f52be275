"""Barriers that a rank leaves before another one has come are told, whatever the ranks' clocks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from gnnhpc.check.watches import barriers
from gnnhpc.check.watches.barriers import Barriers, clock_number
from gnnhpc.check.watches.faults import Faults
from gnnhpc.train.step_observer import BARRIER_VALUES

STEPS = 400
STEP_S = 0.01
EARLY = "left a barrier before another rank had come to it"
APART = "a barrier that one of two ranks left before the other had come to it"


def step(
    at_s: float, lags: Sequence[float], clocks: Sequence[tuple[float, float, float]], *, waits: bool
) -> np.ndarray:
    """Each rank's values of a step that begins at `at_s`, to whose first barrier each comes by so
    much later, and to whose last one the earlier; `clocks` are numbers, offsets and rates."""
    came = np.array([[at_s + lag, at_s + STEP_S - lag] for lag in lags])
    left = np.broadcast_to(came.max(axis=0), came.shape) + 1e-5 if waits else came + 1e-5
    readings = np.stack([came[:, 0], left[:, 0], came[:, 1], left[:, 1]], axis=1)
    number, ahead_s, rate = (np.array(each)[:, None] for each in zip(*clocks, strict=True))
    return np.hstack([number, readings * rate + ahead_s])


def told(
    clocks: Sequence[tuple[float, float, float]],
    lags: Sequence[float] = (0.0, 1e-3),
    *,
    waits: bool,
) -> list[list[str]]:
    """What each rank says of the steps, of which two in the middle are as `waits` says."""
    ranks = [Barriers(rank, Faults(), clock=number) for rank, (number, _, _) in enumerate(clocks)]
    for n in range(STEPS):
        good = waits or n not in (200, 201)
        for rank in ranks:
            everyone = step(1e5 + n * STEP_S * 1.1, lags, clocks, waits=good)
            rank.compare(everyone, f"train step {n}")
    return [rank.faults.told() for rank in ranks]


ONE = ((7.0, 0.0, 1.0), (7.0, 0.0, 1.0))
TWO = ((7.0, 0.0, 1.0), (8.0, 5e4, 1.0))
TWO_RATES = ((7.0, 0.0, 1 - 4e-4), (8.0, -5e4, 1 + 4e-4))
UNKNOWN = ((math.nan, 0.0, 1.0), (math.nan, 5e4, 1.0))


@pytest.mark.parametrize("clocks", [ONE, TWO, TWO_RATES, UNKNOWN])
@pytest.mark.parametrize("lags", [(0.0, 1e-3), (0.0, 0.0), (4e-3, 0.0)])
def test_ranks_that_wait_are_not_accused(
    clocks: Sequence[tuple[float, float, float]], lags: Sequence[float]
) -> None:
    assert told(clocks, lags, waits=True) == [[], []]


def test_the_first_rank_to_leave_is_told_where_all_have_one_clock() -> None:
    first, second = told(ONE, waits=False)
    assert first == [f"{EARLY} in 2 steps, first train step 200: 0.000990 s before rank 1"]
    # To the end of the step it comes before the other rank.
    assert second == [f"{EARLY} in 2 steps, first train step 200: 0.000990 s before rank 0"]


@pytest.mark.parametrize("clocks", [TWO, UNKNOWN])
def test_two_ranks_are_told_where_each_has_a_clock(
    clocks: Sequence[tuple[float, float, float]],
) -> None:
    first, second = told(clocks, waits=False)
    assert second == []
    (fault,) = first
    assert fault.startswith(f"{APART} in ")
    assert "first train step 200: this one and rank 1, by 0.00" in fault


def test_each_pair_of_three_ranks_is_held_by_the_clocks_it_has() -> None:
    clocks = ((7.0, 0.0, 1.0), (8.0, 5e4, 1.0), (8.0, 5e4, 1.0))
    assert told(clocks, (0.0, 1e-3, 2e-3), waits=True) == [[], [], []]
    first, second, third = told(clocks, (0.0, 1e-3, 2e-3), waits=False)
    assert [fault.partition(" in ")[0] for fault in (*first, *second, *third)] == [
        *(APART, EARLY, EARLY),
    ]


def test_barriers_nobody_looked_at_are_told_by_their_rank() -> None:
    found = Barriers(0, Faults()), Barriers(1, Faults())
    found[0].begin_step()
    for _ in range(2):
        found[1].come()
        found[1].leave()
    everyone = np.array([each.values() for each in found])
    for each in found:
        each.compare(everyone, "train step 3")
    (fault,) = found[0].faults.told()
    assert fault == "barriers that were not looked at in 1 steps, first train step 3"
    assert found[1].faults.told() == []


def test_barriers_around_drawing_are_held_where_there_are_any() -> None:
    everyone = step(1e5, (0.0, 1e-3), ONE, waits=True)
    hasty = step(1e5 - 0.1, (0.0, 1e-3), ONE, waits=False)
    both = np.hstack([hasty, everyone[:, 1:]])
    nobody, drawing = Barriers(0, Faults(), clock=7.0), Barriers(0, Faults(), drawn=True, clock=7.0)
    nobody.compare(both, "train step 3")
    drawing.compare(both, "train step 3")
    assert nobody.faults.told() == []
    (fault,) = drawing.faults.told()
    assert fault == f"{EARLY} in 1 steps, first train step 3: 0.000990 s before rank 1"


def test_a_step_has_so_many_barriers() -> None:
    for drawn, barriers_of in ((False, 2), (True, 4)):
        found = Barriers(0, Faults(), drawn=drawn)
        for count in range(6):
            found.begin_step()
            for _ in range(count):
                found.come()
                found.leave()
            values = found.values()
            assert len(values) == BARRIER_VALUES
            assert math.isfinite(sum(values[-2 * barriers_of :])) == (count == barriers_of)


def test_a_rank_alone_meets_nobody() -> None:
    alone = Barriers(0, Faults())
    alone.compare(np.array([alone.values()]), "train step 0")
    assert alone.faults.told() == []


def test_a_clock_is_known_by_its_system(monkeypatch: pytest.MonkeyPatch) -> None:
    here = clock_number()
    assert clock_number() == here or math.isnan(here)
    monkeypatch.setattr(barriers, "running_system", lambda: "one")
    one = clock_number()
    monkeypatch.setattr(barriers, "running_system", lambda: "another")
    assert clock_number() != one
    monkeypatch.setattr(barriers, "running_system", lambda: None)
    assert math.isnan(clock_number())
