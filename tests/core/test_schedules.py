"""Schedules, drawn: one row a stage, one column a unit of time, dots where a stage waits.

A stage's later parts have dashes: F0' is micro-batch 0's forward through its second part.
"""

from __future__ import annotations

import inspect
import math
from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnhpc.core.bound_and_bubble import bound, bound_with_split_backward, ideal_bubble
from gnnhpc.core.schedules import (
    SPLIT_BACKWARD,
    Action,
    ScheduleName,
    Slot,
    gradients_in_flight,
    ideal_step_s,
    in_flight,
    input_from,
    loss_stage,
    place_of_virtual_stage,
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
    parts: int = 1


@st.composite
def plans(draw_: st.DrawFn) -> Plan:
    """Of all schedules; interleaved in a multiple of the stages."""
    schedule: ScheduleName = draw_(st.sampled_from(SCHEDULES))
    stages = draw_(stages_count)
    if schedule == "zbv":
        return Plan(schedule, max(2, stages), draw_(microbatch_count), 2)
    if schedule != "interleaved":
        return Plan(schedule, stages, draw_(microbatch_count))
    stages = min(stages, 4)
    return Plan(schedule, stages, stages * draw_(st.integers(1, 2)), draw_(st.integers(1, 3)))


def draw(
    schedule: ScheduleName,
    stages: int,
    microbatches: int,
    parts: int = 1,
    *,
    backward: int = 1,
    training: bool = True,
) -> str:
    """The timeline where a part's forward costs 1, its backward `backward` units, its weights 1."""
    ones, longer = [1] * (stages * parts), [backward] * (stages * parts)
    slots = timeline(
        *(schedule, ones, longer, microbatches),
        weights_s=ones,
        virtual_stages=parts,
        training=training,
    )
    columns = round(max(slot.end_s for slot in slots))
    rows = [["."] * columns for _ in range(stages)]
    for slot in slots:
        for column in range(round(slot.start_s), round(slot.end_s)):
            assert rows[slot.stage][column] == ".", "a stage does two things at once"
            rows[slot.stage][column] = str(slot.action)
    width = 1 + parts
    return "\n".join(" ".join(f"{cell:<{width}}" for cell in row).rstrip() for row in rows)


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
    # Weights in what would be waiting: 1F1B needs 18 columns of the second, and 20 of the third.
    ("zero-bubble", 1, 2): "F0 B0 W0 F1 B1 W1",
    ("zero-bubble", 2, 5): """
        F0 F1 .  B0 W0 F2 B1 W1 F3 B2 W2 F4 B3 W3 B4 W4
        .  F0 B0 F1 B1 W0 F2 B2 W1 F3 B3 W2 F4 B4 W3 W4
        """,
    ("zero-bubble", 4, 4): """
        F0 F1 F2 F3 .  .  .  B0 W0 B1 W1 B2 W2 B3 W3
        .  F0 F1 F2 .  .  B0 F3 B1 W0 B2 W1 B3 W2 W3
        .  .  F0 F1 .  B0 F2 B1 F3 B2 W0 B3 W1 W2 W3
        .  .  .  F0 B0 F1 B1 F2 B2 F3 B3 W0 W1 W2 W3
        """,
    # Fewer micro-batches than stages: no schedule ever fills.
    ("zero-bubble", 3, 2): """
        F0 F1 .  .  .  B0 W0 B1 W1
        .  F0 F1 .  B0 .  B1 W0 W1
        .  .  F0 B0 F1 B1 W0 W1 .
        """,
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


INTERLEAVED: dict[tuple[int, int, int], str] = {
    # Of 10 columns GPipe and 1F1B would need 12: three micro-batches of twice as long passes.
    (2, 2, 2): """
        F0  F1  F0' F1' .   B0' .   B1' B0  B1
        .   F0  F1  F0' B0' F1' B1' B0  B1  .
        """,
    (2, 4, 2): """
        F0  F1  F0' F1' F2  B0' F3  B1' F2' B0  F3' B1  .   B2' .   B3' B2  B3
        .   F0  F1  F0' B0' F1' B1' F2  B0  F3  B1  F2' B2' F3' B3' B2  B3  .
        """,
    (3, 3, 2): """
        F0  F1  F2  F0' F1' F2' .   .   B0' .   B1' .   B2' B0  B1  B2
        .   F0  F1  F2  F0' F1' F2' B0' .   B1' .   B2' B0  B1  B2  .
        .   .   F0  F1  F2  F0' B0' F1' B1' F2' B2' B0  B1  B2  .   .
        """,
    (2, 2, 3): """
        F0   F1   F0'  F1'  F0'' F1'' .    B0'' .    B1'' B0'  B1'  B0   B1
        .    F0   F1   F0'  F1'  F0'' B0'' F1'' B1'' B0'  B1'  B0   B1   .
        """,
    # Fewer micro-batches than stages: only checks of a run have so few.
    (3, 2, 2): """
        F0  F1  .   F0' F1' .   .   .   .   B0' B1' .   B0  B1
        .   F0  F1  .   F0' F1' .   .   B0' B1' .   B0  B1  .
        .   .   F0  F1  .   F0' F1' B0' B1' .   B0  B1  .   .
        """,
    # One part a stage is 1F1B but for warming up twice as long.
    (2, 4, 1): """
        F0 F1 F2 B0 F3 B1 .  B2 .  B3
        .  F0 B0 F1 B1 F2 B2 F3 B3 .
        """,
}


@pytest.mark.parametrize(("case", "expected"), INTERLEAVED.items(), ids=str)
def test_pictures_of_several_parts_a_stage(case: tuple[int, int, int], expected: str) -> None:
    assert draw("interleaved", *case) == inspect.cleandoc(expected).strip()


def test_evaluation_of_several_parts() -> None:
    expected = """
        F0  F1  F0' F1' F2  F3  F2' F3' .
        .   F0  F1  F0' F1' F2  F3  F2' F3'
        """
    drawn = draw("interleaved", 2, 4, 2, training=False)
    assert drawn == inspect.cleandoc(expected).strip()


V: dict[tuple[int, int], str] = {
    # The second parts go back: stage 1 has both in a row, and stage 0 begins and ends.
    (2, 1): """
        F0  .   .   F0' B0' W0' .   .   B0  W0
        .   F0  F0' .   .   B0' W0' B0  W0  .
        """,
    # From 2*S - 1 micro-batches on nobody waits but for the first forwards.
    (2, 3): """
        F0  F1  F2  F0' B0' W0' F1' B1' W1' B0  W0  F2' B2' W2' B1  W1  B2  W2  .
        .   F0  F0' F1  F1' B0' W0' F2  B0  W0  F2' B1' W1' B1  B2' B2  W1  W2' W2
        """,
    (3, 2): """
        F0  F1  .   .   .   F0' B0' W0' F1' B1' W1' .   .   B0  W0  .   B1  W1
        .   F0  F1  .   F0' .   F1' B0' W0' .   B1' W1' B0  W0  .   B1  W1  .
        .   .   F0  F0' F1  F1' .   .   B0' W0' B0  W0  B1' W1' B1  W1  .   .
        """,
}


@pytest.mark.parametrize(("case", "expected"), V.items(), ids=str)
def test_pictures_of_parts_that_go_back(case: tuple[int, int], expected: str) -> None:
    assert draw("zbv", *case, 2) == inspect.cleandoc(expected).strip()


def test_evaluation_of_parts_that_go_back() -> None:
    expected = """
        F0  F1  F2  F0' F3  F1' .   F2' .   F3'
        .   F0  F0' F1  F1' F2  F2' F3  F3' .
        """
    assert draw("zbv", 2, 4, 2, training=False) == inspect.cleandoc(expected).strip()


@given(st.integers(2, 6), microbatch_count)
def test_evaluation_waits_as_if_two_parts_that_go_back_were_one(
    stages: int, microbatches: int
) -> None:
    """What `analysis` takes for its bound: the last forward goes there and back."""
    ones = [1.0] * (2 * stages)
    ideal = ideal_step_s("zbv", ones, ones, microbatches, virtual_stages=2, training=False)
    assert ideal == 2 * (microbatches + stages - 1)


@given(stages_count)
def test_the_parts_of_stages_are_all_parts_of_the_model(stages: int) -> None:
    for schedule in SCHEDULES:
        parts = 2 if schedule in ("interleaved", "zbv") else 1
        places = [(stage, part) for stage in range(stages) for part in range(parts)]
        numbers = {
            virtual_stage_number(schedule, stage, stages, part): (stage, part)
            for stage, part in places
        }
        assert sorted(numbers) == list(range(stages * parts))
        for number, place in numbers.items():
            assert place_of_virtual_stage(schedule, number, stages) == place
        assert numbers[stages * parts - 1][0] == loss_stage(schedule, stages)


def test_zbv_has_two_parts_a_stage() -> None:
    with pytest.raises(ValueError, match="'zbv' has two virtual stages a stage, not 1"):
        stage_order("zbv", 0, 2, 4)
    with pytest.raises(ValueError, match="'zbv' has two virtual stages a stage, not 3"):
        stage_order("zbv", 0, 2, 4, virtual_stages=3)
    assert [str(action) for action in stage_order("zbv", 0, 1, 1)] == ["F0", "B0", "W0"]


def test_several_parts_are_for_the_interleaved_schedule_alone() -> None:
    with pytest.raises(ValueError, match="one virtual stage a stage"):
        stage_order("1f1b", 0, 2, 4, virtual_stages=2)
    with pytest.raises(ValueError, match="5 micro-batches are no multiple of 2 stages"):
        stage_order("interleaved", 0, 2, 5, virtual_stages=2)


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


@given(plans())
def test_a_stage_does_every_action_once_and_no_backward_before_its_forward(plan: Plan) -> None:
    schedule, stages, microbatches, parts = plan
    for stage in range(stages):
        order = stage_order(schedule, stage, stages, microbatches, virtual_stages=parts)
        passes = 3 if schedule in SPLIT_BACKWARD else 2
        assert len(order) == len(set(order)) == passes * microbatches * parts
        for part in range(parts):
            for m in range(microbatches):
                forward, backward = Action("forward", m, part), Action("backward", m, part)
                assert order.index(forward) < order.index(backward)
                if schedule in SPLIT_BACKWARD:
                    assert order.index(backward) < order.index(Action("weights", m, part))


Costs = tuple[Plan, list[list[int]], list[list[int]], list[list[int]]]


@st.composite
def costs(draw_: st.DrawFn) -> Costs:
    """Units of each part's and micro-batch's forward, backward and weights (whole, so that sums are
    exact)."""
    plan = draw_(plans())
    row = st.lists(st.integers(0, 20), min_size=plan.microbatches, max_size=plan.microbatches)
    numbers = plan.stages * plan.parts
    table = st.lists(row, min_size=numbers, max_size=numbers)
    return plan, draw_(table), draw_(table), draw_(table)


@given(costs())
def test_dependencies_are_kept_and_stages_never_overlap_themselves(
    given_costs: Costs,
) -> None:
    (schedule, stages, microbatches, parts), forward, backward, weights = given_costs
    slots = timeline(
        schedule, forward, backward, microbatches, weights_s=weights, virtual_stages=parts
    )
    at = {(slot.stage, slot.action): slot for slot in slots}
    passes = 3 if schedule in SPLIT_BACKWARD else 2
    assert len(at) == len(slots) == passes * stages * microbatches * parts
    for slot in slots:
        for earlier in _must_follow(schedule, slot, stages, parts):
            assert at[earlier].end_s <= slot.start_s
    for stage in range(stages):
        mine = [slot for slot in slots if slot.stage == stage]
        order = stage_order(schedule, stage, stages, microbatches, virtual_stages=parts)
        assert [slot.action for slot in mine] == order
        assert all(one.end_s <= next_.start_s for one, next_ in pairwise(mine))


def _must_follow(
    schedule: ScheduleName, slot: Slot, stages: int, parts: int
) -> list[tuple[int, Action]]:
    """By the numbers of parts: a forward the one before, a backward the one after and its own;
    weights their own backward."""
    kind, m, part = slot.action.kind, slot.action.microbatch, slot.action.virtual_stage
    if kind == "weights":
        return [(slot.stage, Action("backward", m, part))]
    everything = [(p, s) for p in range(parts) for s in range(stages)]
    if schedule == "zbv":
        everything[stages:] = everything[: stages - 1 : -1]
    here = everything.index((part, slot.stage))
    beside = here - 1 if kind == "forward" else here + 1
    found = [] if kind == "forward" else [(slot.stage, Action("forward", m, part))]
    if 0 <= beside < len(everything):
        part_beside, stage_beside = everything[beside]
        found.append((stage_beside, Action(kind, m, part_beside)))
    return found


@given(plans())
def test_what_an_action_takes_is_made_once_and_before(plan: Plan) -> None:
    schedule, stages, microbatches, parts = plan
    for stage in range(stages):
        for action in stage_order(schedule, stage, stages, microbatches, virtual_stages=parts):
            needed = input_from(schedule, stage, stages, parts, action)
            assert (needed is None) == (
                action.kind == "forward" and stage == 0 and action.virtual_stage == 0
            )
            assert needed is None or needed in _must_follow(
                schedule, Slot(stage, action, 0.0, 0.0), stages, parts
            )


@given(costs())
def test_no_step_is_shorter_than_its_busiest_stage(
    given_costs: Costs,
) -> None:
    (schedule, stages, microbatches, parts), forward, backward, weights = given_costs
    tables = [forward, backward, *([weights] if schedule in SPLIT_BACKWARD else [])]
    seconds = [sum(map(sum, rows)) for rows in zip(*tables, strict=True)]
    busy = [
        sum(seconds[virtual_stage_number(schedule, stage, stages, part)] for part in range(parts))
        for stage in range(stages)
    ]
    ideal = ideal_step_s(
        schedule, forward, backward, microbatches, weights_s=weights, virtual_stages=parts
    )
    assert max(busy) <= ideal <= sum(busy)


@given(plans().filter(lambda plan: plan.schedule != "zbv"), st.integers(1, 4), st.integers(1, 50))
def test_balanced_stages_reach_the_bound_under_every_schedule(
    plan: Plan, replicas: int, backward: int
) -> None:
    """One process does M*(f+b) for each part of one replica's batch; R replicas do R batches."""
    schedule, stages, microbatches, parts = plan
    numbers = stages * parts
    # Without gradients of weights apart the zero-bubble schedule is 1F1B.
    ideal = ideal_step_s(
        schedule, [7] * numbers, [backward] * numbers, microbatches, virtual_stages=parts
    )
    assert ideal == (parts * microbatches + stages - 1) * (7 + backward)
    alone = numbers * microbatches * (7 + backward)
    reached = replicas * alone / ideal
    assert math.isclose(bound(replicas, stages, microbatches, parts), reached)
    waited = 1 - alone / (stages * ideal)
    assert math.isclose(ideal_bubble(stages, microbatches, parts), waited, abs_tol=1e-12)


@given(stages_count, microbatch_count, st.integers(1, 5))
def test_the_bound_is_approached_and_never_exceeds_the_ranks(
    stages: int, microbatches: int, parts: int
) -> None:
    most = bound(3, stages, microbatches, parts)
    assert most <= bound(3, stages, microbatches + 1, parts) <= 3 * stages
    assert most <= bound(3, stages, microbatches, parts + 1)
    assert bound(1, 1, microbatches, parts) == 1
    assert ideal_bubble(1, microbatches, parts) == 0


@given(stages_count, microbatch_count)
def test_1f1b_holds_no_more_than_the_stages_to_come(stages: int, microbatches: int) -> None:
    for stage in range(stages):
        assert in_flight("gpipe", stage, stages, microbatches) == microbatches
        assert in_flight("1f1b", stage, stages, microbatches) == min(microbatches, stages - stage)


@given(stages_count, st.integers(1, 3), st.integers(1, 4))
def test_interleaved_holds_what_its_first_forwards_make(
    stages: int, groups: int, parts: int
) -> None:
    """(V-1)*S + 2*(S-s-1) + 1 of V parts each: at most 1 + 1/V times what 1F1B's first stage
    holds, for many stages (Narayanan et al. 2021, section 2.2)."""
    microbatches = stages * groups
    for stage in range(stages):
        held = in_flight("interleaved", stage, stages, microbatches, virtual_stages=parts)
        first = (parts - 1) * stages + 2 * (stages - stage - 1) + 1
        assert held == min(parts * microbatches, first)
        of_parts = [
            in_flight(
                "interleaved", stage, stages, microbatches, virtual_stages=parts, virtual_stage=part
            )
            for part in range(parts)
        ]
        assert max(of_parts) <= microbatches
        assert held <= sum(of_parts)


def test_known_bounds() -> None:
    assert bound(1, 2, 5) == pytest.approx(1.667, abs=1e-3)
    assert bound(1, 4, 10) == pytest.approx(40 / 13)
    assert bound(2, 2, 10) == pytest.approx(2 * 20 / 11)
    # Twice the parts, half the bubble.
    assert bound(1, 2, 4, 2) == pytest.approx(2 * 4 / 4.5)
    assert bound(1, 4, 8, 2) == pytest.approx(4 * 8 / 9.5)
    # A third of the work put into what would be waiting.
    assert bound_with_split_backward("zero-bubble", 1, 2, 5, (1, 1, 1)) == pytest.approx(1.875)
    assert bound_with_split_backward("zero-bubble", 2, 4, 8, (1, 1, 1)) == pytest.approx(
        2 * 4 * 24 / 27
    )
    # Half of a forward is all that is waited for.
    assert bound_with_split_backward("zbv", 1, 2, 5, (1, 1, 1), 2) == pytest.approx(2 * 15 / 15.5)


@given(st.integers(1, 6), st.integers(0, 6))
def test_thirds_wait_for_a_third_of_a_microbatch(stages: int, more: int) -> None:
    """As three parts a stage do (Qi et al. 2024, table 2), and hold what 1F1B's first stage has."""
    microbatches = stages + more
    thirds = bound_with_split_backward(
        "zero-bubble", 3, stages, microbatches, (1 / 3, 1 / 3, 1 / 3)
    )
    assert thirds == pytest.approx(bound(3, stages, microbatches, 3))
    for stage in range(stages):
        assert in_flight("zero-bubble", stage, stages, microbatches) == stages
        assert gradients_in_flight("zero-bubble", stage, stages, microbatches) == stage + 1
        assert gradients_in_flight("1f1b", stage, stages, microbatches) == 1


@given(st.integers(2, 6), st.integers(0, 6))
def test_thirds_that_go_back_wait_for_a_sixth_of_a_microbatch(stages: int, more: int) -> None:
    """And hold on each stage what 1F1B's first stage has (Qi et al. 2024, section 6)."""
    microbatches = 2 * stages - 1 + more
    thirds = bound_with_split_backward("zbv", 3, stages, microbatches, (1 / 3, 1 / 3, 1 / 3), 2)
    assert thirds == pytest.approx(bound(3, stages, microbatches, 6))
    for stage in range(stages):
        assert in_flight("zbv", stage, stages, microbatches, virtual_stages=2) == 2 * stages
        of_parts = [
            in_flight("zbv", stage, stages, microbatches, virtual_stages=2, virtual_stage=part)
            for part in (0, 1)
        ]
        assert of_parts == [min(microbatches, 2 * stages - stage), stage + 1]
        gradients = [
            gradients_in_flight(
                "zbv", stage, stages, microbatches, virtual_stages=2, virtual_stage=part
            )
            for part in (0, 1)
        ]
        assert gradients == [stage + 1, max(1, stage)]


@given(st.integers(3, 9), st.integers(1, 50), st.integers(1, 50), st.integers(0, 50))
def test_two_stages_never_lose_by_parts_that_go_back(
    microbatches: int, forward: int, backward: int, weights: int
) -> None:
    """More stages may: there backwards come late where weights take long."""
    shares = forward, backward, weights
    most = bound_with_split_backward("zbv", 1, 2, microbatches, shares, 2)
    assert most >= bound_with_split_backward("zero-bubble", 1, 2, microbatches, shares) * (1 - 1e-9)
    assert most <= 2 * (1 + 1e-9)


shares = st.integers(1, 50)


@given(stages_count, microbatch_count, shares, shares, st.integers(0, 50))
def test_split_backward_never_take_longer_than_beside(
    stages: int, microbatches: int, forward: int, backward: int, weights: int
) -> None:
    """Between 1F1B and no waiting at all; without weights it is 1F1B."""
    most = bound_with_split_backward(
        "zero-bubble", 1, stages, microbatches, (forward, backward, weights)
    )
    assert bound(1, stages, microbatches) <= most * (1 + 1e-9)
    assert most <= stages * (1 + 1e-9)
    none = bound_with_split_backward("zero-bubble", 1, stages, microbatches, (forward, backward, 0))
    assert none == pytest.approx(bound(1, stages, microbatches))
