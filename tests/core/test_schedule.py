"""Schedules, drawn: one row a stage, one column a unit of time, dots where a stage waits."""

from __future__ import annotations

import inspect
import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnhpc.core.schedule import (
    Action,
    ScheduleName,
    Slot,
    bound,
    ideal_bubble,
    ideal_step_s,
    in_flight,
    stage_order,
    timeline,
)

stages_count = st.integers(1, 6)
microbatch_count = st.integers(1, 9)
names = st.sampled_from(["gpipe", "1f1b"])


def draw(
    schedule: ScheduleName, stages: int, microbatches: int, *, backward: int = 1, **options: bool
) -> str:
    """The timeline where a forward costs 1 and a backward `backward` units."""
    slots = timeline(schedule, [1] * stages, [backward] * stages, microbatches, **options)
    columns = round(max(slot.end_s for slot in slots))
    rows = [["."] * columns for _ in range(stages)]
    for slot in slots:
        for column in range(round(slot.start_s), round(slot.end_s)):
            assert rows[slot.stage][column] == ".", "a stage does two things at once"
            rows[slot.stage][column] = str(slot.action)
    return "\n".join(" ".join(f"{cell:<2}" for cell in row).rstrip() for row in rows)


PICTURES: dict[tuple[ScheduleName, int, int], str] = {
    ("gpipe", 1, 3): "F0 F1 F2 B0 B1 B2",
    ("1f1b", 1, 3): "F0 B0 F1 B1 F2 B2",
    ("gpipe", 2, 3): """
        F0 F1 F2 .  .  B0 B1 B2
        .  F0 F1 F2 B0 B1 B2 .
        """,
    ("1f1b", 2, 3): """
        F0 F1 .  B0 F2 B1 .  B2
        .  F0 B0 F1 B1 F2 B2 .
        """,
    ("gpipe", 4, 4): """
        F0 F1 F2 F3 .  .  .  .  .  .  B0 B1 B2 B3
        .  F0 F1 F2 F3 .  .  .  .  B0 B1 B2 B3 .
        .  .  F0 F1 F2 F3 .  .  B0 B1 B2 B3 .  .
        .  .  .  F0 F1 F2 F3 B0 B1 B2 B3 .  .  .
        """,
    ("1f1b", 4, 4): """
        F0 F1 F2 F3 .  .  .  B0 .  B1 .  B2 .  B3
        .  F0 F1 F2 .  .  B0 F3 B1 .  B2 .  B3 .
        .  .  F0 F1 .  B0 F2 B1 F3 B2 .  B3 .  .
        .  .  .  F0 B0 F1 B1 F2 B2 F3 B3 .  .  .
        """,
    ("gpipe", 3, 5): """
        F0 F1 F2 F3 F4 .  .  .  .  B0 B1 B2 B3 B4
        .  F0 F1 F2 F3 F4 .  .  B0 B1 B2 B3 B4 .
        .  .  F0 F1 F2 F3 F4 B0 B1 B2 B3 B4 .  .
        """,
    ("1f1b", 3, 5): """
        F0 F1 F2 .  .  B0 F3 B1 F4 B2 .  B3 .  B4
        .  F0 F1 .  B0 F2 B1 F3 B2 F4 B3 .  B4 .
        .  .  F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 .  .
        """,
    # Fewer micro-batches than stages: neither schedule ever fills.
    ("gpipe", 3, 1): """
        F0 .  .  .  .  B0
        .  F0 .  .  B0 .
        .  .  F0 B0 .  .
        """,
    ("1f1b", 3, 2): """
        F0 F1 .  .  .  B0 .  B1
        .  F0 F1 .  B0 .  B1 .
        .  .  F0 B0 F1 B1 .  .
        """,
}


@pytest.mark.parametrize(("case", "expected"), PICTURES.items(), ids=str)
def test_pictures(case: tuple[ScheduleName, int, int], expected: str) -> None:
    assert draw(*case) == inspect.cleandoc(expected).strip()


def test_backwards_twice_as_long() -> None:
    expected = """
        F0 F1 .  .  B0 B0 F2 B1 B1 .  B2 B2
        .  F0 B0 B0 F1 B1 B1 F2 B2 B2 .  .
        """
    assert draw("1f1b", 2, 3, backward=2) == inspect.cleandoc(expected).strip()


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_evaluation_is_the_forward_half(schedule: ScheduleName) -> None:
    expected = """
        F0 F1 F2 .  .
        .  F0 F1 F2 .
        .  .  F0 F1 F2
        """
    assert draw(schedule, 3, 3, training=False) == inspect.cleandoc(expected).strip()


def test_a_slow_stage_sets_the_pace() -> None:
    """Stage 1 takes 3 a forward and 6 a backward; the others wait for it, not the sum of all."""
    ideal = ideal_step_s("gpipe", [1, 3, 1], [2, 6, 2], 4)
    assert ideal == (1 + 4 * 3 + 1) + (2 + 4 * 6 + 2)


def test_each_microbatch_may_have_its_own_seconds() -> None:
    slots = timeline("gpipe", [[1, 2], [5, 1]], [[1, 1], [1, 1]], 2)
    when = {(slot.stage, str(slot.action)): (slot.start_s, slot.end_s) for slot in slots}
    assert when[0, "F1"] == (1, 3)
    assert when[1, "F0"] == (1, 6)
    assert when[1, "F1"] == (6, 7)
    assert when[1, "B1"] == (8, 9)
    assert when[0, "B1"] == (9, 10)


@given(names, stages_count, microbatch_count)
def test_a_stage_does_every_action_once_and_no_backward_before_its_forward(
    schedule: ScheduleName, stages: int, microbatches: int
) -> None:
    for stage in range(stages):
        order = stage_order(schedule, stage, stages, microbatches)
        assert len(order) == len(set(order)) == 2 * microbatches
        for m in range(microbatches):
            assert order.index(Action("forward", m)) < order.index(Action("backward", m))


@st.composite
def costs(draw_: st.DrawFn) -> tuple[list[list[int]], list[list[int]], int]:
    """Forward and backward units of each stage and micro-batch (whole, so that sums are exact)."""
    stages, microbatches = draw_(stages_count), draw_(microbatch_count)
    row = st.lists(st.integers(0, 20), min_size=microbatches, max_size=microbatches)
    table = st.lists(row, min_size=stages, max_size=stages)
    return draw_(table), draw_(table), microbatches


@given(names, costs())
def test_dependencies_are_kept_and_stages_never_overlap_themselves(
    schedule: ScheduleName, given_costs: tuple[list[list[int]], list[list[int]], int]
) -> None:
    forward, backward, microbatches = given_costs
    stages = len(forward)
    slots = timeline(schedule, forward, backward, microbatches)
    at = {(slot.stage, slot.action): slot for slot in slots}
    assert len(at) == len(slots) == 2 * stages * microbatches
    for slot in slots:
        for earlier in _must_follow(slot, stages):
            assert at[earlier].end_s <= slot.start_s
    for stage in range(stages):
        mine = [slot for slot in slots if slot.stage == stage]
        assert [slot.action for slot in mine] == stage_order(schedule, stage, stages, microbatches)
        assert all(one.end_s <= next_.start_s for one, next_ in pairwise(mine))


def _must_follow(slot: Slot, stages: int) -> list[tuple[int, Action]]:
    m = slot.action.microbatch
    if slot.action.kind == "forward":
        return [(slot.stage - 1, slot.action)] if slot.stage else []
    forward = [(slot.stage, Action("forward", m))]
    return forward + ([(slot.stage + 1, slot.action)] if slot.stage < stages - 1 else [])


@given(names, costs())
def test_no_step_is_shorter_than_its_busiest_stage(
    schedule: ScheduleName, given_costs: tuple[list[list[int]], list[list[int]], int]
) -> None:
    forward, backward, microbatches = given_costs
    busy = [sum(f) + sum(b) for f, b in zip(forward, backward, strict=True)]
    ideal = ideal_step_s(schedule, forward, backward, microbatches)
    assert max(busy) <= ideal <= sum(busy)


@given(names, stages_count, microbatch_count, st.integers(1, 4), st.integers(1, 50))
def test_balanced_stages_reach_the_bound_under_either_schedule(
    schedule: ScheduleName, stages: int, microbatches: int, replicas: int, backward: int
) -> None:
    """One process does S*M*(f+b) for one replica's batch; R replicas do R batches a step."""
    ideal = ideal_step_s(schedule, [7] * stages, [backward] * stages, microbatches)
    assert ideal == (microbatches + stages - 1) * (7 + backward)
    alone = stages * microbatches * (7 + backward)
    assert math.isclose(bound(replicas, stages, microbatches), replicas * alone / ideal)
    waited = 1 - alone / (stages * ideal)
    assert math.isclose(ideal_bubble(stages, microbatches), waited, abs_tol=1e-12)


@given(stages_count, microbatch_count)
def test_the_bound_is_approached_and_never_exceeds_the_ranks(
    stages: int, microbatches: int
) -> None:
    assert bound(3, stages, microbatches) <= bound(3, stages, microbatches + 1) <= 3 * stages
    assert bound(1, 1, microbatches) == 1
    assert ideal_bubble(1, microbatches) == 0


@given(stages_count, microbatch_count)
def test_1f1b_holds_no_more_than_the_stages_to_come(stages: int, microbatches: int) -> None:
    for stage in range(stages):
        assert in_flight("gpipe", stage, stages, microbatches) == microbatches
        assert in_flight("1f1b", stage, stages, microbatches) == min(microbatches, stages - stage)


def test_known_bounds() -> None:
    assert bound(1, 2, 5) == pytest.approx(1.667, abs=1e-3)
    assert bound(1, 4, 10) == pytest.approx(40 / 13)
    assert bound(2, 2, 10) == pytest.approx(2 * 20 / 11)
