"""Schedules as pictures: one row a stage, one column a unit of time, dots where a stage waits.

A dash stands for a second virtual stage: F0' is micro-batch 0's forward through it.
"""

from __future__ import annotations

import inspect
import math
from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnhpc.core.schedules import (
    SPLIT_BACKWARD,
    Action,
    ScheduleName,
    Slot,
    bound,
    bound_with_split_backward,
    input_from,
    stage_order,
    timeline,
    virtual_stage_number,
)

SCHEDULES: list[ScheduleName] = ["gpipe", "1f1b", "interleaved", "zero-bubble", "zbv"]
stages_count = st.integers(1, 6)
microbatch_count = st.integers(1, 9)


class Plan(NamedTuple):
    schedule: ScheduleName
    stages: int
    microbatches: int
    virtual_stages: int = 1


@st.composite
def plans(sample: st.DrawFn) -> Plan:
    """Plans of all schedules; interleaved has a multiple of the stages."""
    schedule: ScheduleName = sample(st.sampled_from(SCHEDULES))
    stages = sample(stages_count)
    if schedule == "zbv":
        return Plan(schedule, max(2, stages), sample(microbatch_count), 2)
    if schedule != "interleaved":
        return Plan(schedule, stages, sample(microbatch_count))
    stages = min(stages, 4)
    return Plan(schedule, stages, stages * sample(st.integers(1, 2)), sample(st.integers(1, 3)))


def picture(
    schedule: ScheduleName,
    stages: int,
    microbatches: int,
    virtual_stages: int = 1,
    *,
    training: bool = True,
) -> str:
    """The timeline where each action costs 1."""
    ones = [1] * (stages * virtual_stages)
    slots = timeline(
        *(schedule, ones, ones, microbatches),
        weights_s=ones,
        virtual_stages=virtual_stages,
        training=training,
    )
    columns = round(max(slot.end_s for slot in slots))
    rows = [["."] * columns for _ in range(stages)]
    for slot in slots:
        for column in range(round(slot.start_s), round(slot.end_s)):
            assert rows[slot.stage][column] == ".", "a stage does two things at once"
            rows[slot.stage][column] = str(slot.action)
    width = 1 + virtual_stages
    return "\n".join(" ".join(f"{cell:<{width}}" for cell in row).rstrip() for row in rows)


PICTURES: dict[Plan, str] = {
    Plan("gpipe", 3, 5): """
        F0 F1 F2 F3 F4 .  .  .  .  B0 B1 B2 B3 B4
        .  F0 F1 F2 F3 F4 .  .  B0 B1 B2 B3 B4 .
        .  .  F0 F1 F2 F3 F4 B0 B1 B2 B3 B4 .  .
        """,
    Plan("1f1b", 3, 5): """
        F0 F1 F2 .  .  B0 F3 B1 F4 B2 .  B3 .  B4
        .  F0 F1 .  B0 F2 B1 F3 B2 F4 B3 .  B4 .
        .  .  F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 .  .
        """,
    Plan("zero-bubble", 4, 4): """
        F0 F1 F2 F3 .  .  .  B0 W0 B1 W1 B2 W2 B3 W3
        .  F0 F1 F2 .  .  B0 F3 B1 W0 B2 W1 B3 W2 W3
        .  .  F0 F1 .  B0 F2 B1 F3 B2 W0 B3 W1 W2 W3
        .  .  .  F0 B0 F1 B1 F2 B2 F3 B3 W0 W1 W2 W3
        """,
    Plan("interleaved", 3, 3, 2): """
        F0  F1  F2  F0' F1' F2' .   .   B0' .   B1' .   B2' B0  B1  B2
        .   F0  F1  F2  F0' F1' F2' B0' .   B1' .   B2' B0  B1  B2  .
        .   .   F0  F1  F2  F0' B0' F1' B1' F2' B2' B0  B1  B2  .   .
        """,
    # From 2*S - 1 micro-batches on stages wait only for the first forwards.
    Plan("zbv", 2, 3, 2): """
        F0  F1  F2  F0' B0' W0' F1' B1' W1' B0  W0  F2' B2' W2' B1  W1  B2  W2  .
        .   F0  F0' F1  F1' B0' W0' F2  B0  W0  F2' B1' W1' B1  B2' B2  W1  W2' W2
        """,
    Plan("zbv", 3, 2, 2): """
        F0  F1  .   .   .   F0' B0' W0' F1' B1' W1' .   .   B0  W0  .   B1  W1
        .   F0  F1  .   F0' .   F1' B0' W0' .   B1' W1' B0  W0  .   B1  W1  .
        .   .   F0  F0' F1  F1' .   .   B0' W0' B0  W0  B1' W1' B1  W1  .   .
        """,
}


@pytest.mark.parametrize(("plan", "expected"), PICTURES.items(), ids=str)
def test_pictures(plan: Plan, expected: str) -> None:
    assert picture(*plan) == inspect.cleandoc(expected).strip()


def test_an_evaluation_has_forwards_alone() -> None:
    expected = """
        F0  F1  F2  F0' F3  F1' .   F2' .   F3'
        .   F0  F0' F1  F1' F2  F2' F3  F3' .
        """
    assert picture("zbv", 2, 4, 2, training=False) == inspect.cleandoc(expected).strip()


Costs = tuple[Plan, list[list[int]], list[list[int]], list[list[int]]]


@st.composite
def costs(sample: st.DrawFn) -> Costs:
    """Whole units of each virtual stage's and micro-batch's forward, backward and weights."""
    plan = sample(plans())
    row = st.lists(st.integers(0, 20), min_size=plan.microbatches, max_size=plan.microbatches)
    numbers = plan.stages * plan.virtual_stages
    table = st.lists(row, min_size=numbers, max_size=numbers)
    return plan, sample(table), sample(table), sample(table)


@given(costs())
def test_each_action_is_done_once_and_after_what_it_needs(given_costs: Costs) -> None:
    (schedule, stages, microbatches, count), forward, backward, weights = given_costs
    slots = timeline(
        schedule, forward, backward, microbatches, weights_s=weights, virtual_stages=count
    )
    at = {(slot.stage, slot.action): slot for slot in slots}
    passes = 3 if schedule in SPLIT_BACKWARD else 2
    assert len(at) == len(slots) == passes * stages * microbatches * count
    for slot in slots:
        needed = input_from(schedule, slot.stage, stages, count, slot.action)
        assert (needed is None) == (
            (slot.action.kind, slot.stage, slot.action.virtual_stage) == ("forward", 0, 0)
        )
        assert needed is None or needed in _needs(schedule, slot, stages, count)
        for earlier in _needs(schedule, slot, stages, count):
            assert at[earlier].end_s <= slot.start_s
    for stage in range(stages):
        mine = [slot for slot in slots if slot.stage == stage]
        order = stage_order(schedule, stage, stages, microbatches, virtual_stages=count)
        assert [slot.action for slot in mine] == order
        assert all(one.end_s <= next_.start_s for one, next_ in pairwise(mine))
    tables = [forward, backward, *([weights] if schedule in SPLIT_BACKWARD else [])]
    seconds = [sum(map(sum, rows)) for rows in zip(*tables, strict=True)]
    busy = [
        sum(seconds[virtual_stage_number(schedule, stage, stages, v)] for v in range(count))
        for stage in range(stages)
    ]
    assert max(busy) <= max(slot.end_s for slot in slots) <= sum(busy)


def _needs(schedule: ScheduleName, slot: Slot, stages: int, count: int) -> list[tuple[int, Action]]:
    """A forward needs the one before, a backward the one after and its own forward, gradients of
    weights their own backward."""
    kind, m, place = slot.action.kind, slot.action.microbatch, slot.action.virtual_stage
    if kind == "weights":
        return [(slot.stage, Action("backward", m, place))]
    everything = [(v, s) for v in range(count) for s in range(stages)]
    if schedule == "zbv":
        everything[stages:] = everything[: stages - 1 : -1]
    number = everything.index((place, slot.stage))
    neighbour = number - 1 if kind == "forward" else number + 1
    found = [] if kind == "forward" else [(slot.stage, Action("forward", m, place))]
    if 0 <= neighbour < len(everything):
        virtual_stage, stage = everything[neighbour]
        found.append((stage, Action(kind, m, virtual_stage)))
    return found


@given(plans().filter(lambda plan: plan.schedule != "zbv"), st.integers(1, 4), st.integers(1, 50))
def test_balanced_stages_reach_the_bound(plan: Plan, replicas: int, backward: int) -> None:
    """Without gradients of weights the zero-bubble schedule is 1F1B."""
    schedule, stages, microbatches, count = plan
    numbers = stages * count
    costs = [7] * numbers, [backward] * numbers
    slots = timeline(schedule, *costs, microbatches, virtual_stages=count)
    ideal = max(slot.end_s for slot in slots)
    assert ideal == (count * microbatches + stages - 1) * (7 + backward)
    alone = numbers * microbatches * (7 + backward)
    assert math.isclose(bound(replicas, stages, microbatches, count), replicas * alone / ideal)


def test_known_bounds() -> None:
    assert bound(2, 2, 10) == pytest.approx(2 * 20 / 11)
    split = bound_with_split_backward("zero-bubble", 1, 2, 5, (1, 1, 1))
    assert split == pytest.approx(1.875)
