"""Receives that keep the device: early, and never so early as to wait for ever.

The machine here is the worst there is: a stage does nothing while a receive that it has posted has
not come. A schedule that ends on it ends on any.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnhpc.core.early_receives import done_before_posting
from gnnhpc.core.schedule import Action, ScheduleName, stage_order, timeline

Needs = dict[tuple[int, Action], int]
names = st.sampled_from(["gpipe", "1f1b"])
stages_count = st.integers(2, 6)
microbatch_count = st.integers(1, 9)


def needs_of(schedule: ScheduleName, stages: int, microbatches: int) -> Needs:
    return {
        (stage, action): count
        for stage in range(stages)
        for action, count in done_before_posting(schedule, stage, stages, microbatches).items()
    }


def ends(schedule: ScheduleName, stages: int, microbatches: int, needs: Needs) -> bool:
    """Whether every stage comes to the end of its order."""
    orders = [stage_order(schedule, stage, stages, microbatches) for stage in range(stages)]
    done: list[int] = [0] * stages
    sent: set[tuple[int, Action]] = set()
    moved = True
    while moved:
        moved = False
        for stage, order in enumerate(orders):
            posted = [a for (at, a), count in needs.items() if at == stage and count <= done[stage]]
            waits = any((stage, action) not in sent for action in posted)
            if done[stage] < len(order) and not waits:
                action = order[done[stage]]
                sent.add((stage + 1 if action.kind == "forward" else stage - 1, action))
                done[stage] += 1
                moved = True
    return done == [len(order) for order in orders]


@given(names, stages_count, microbatch_count)
def test_no_stage_waits_for_ever(schedule: ScheduleName, stages: int, microbatches: int) -> None:
    assert ends(schedule, stages, microbatches, needs_of(schedule, stages, microbatches))


@given(names, stages_count, microbatch_count)
def test_that_machine_stops_where_all_receives_are_posted_at_once(
    schedule: ScheduleName, stages: int, microbatches: int
) -> None:
    needs = needs_of(schedule, stages, microbatches)
    assert not ends(schedule, stages, microbatches, dict.fromkeys(needs, 0))


def test_it_stops_too_where_each_stage_looks_at_its_own_actions_alone() -> None:
    """Stage 0 may post gradient 1 before F3, which it does not need, and stage 1 F3 before B1."""
    early = needs_of("1f1b", 3, 4) | {(0, Action("backward", 1)): 3, (1, Action("forward", 3)): 3}
    assert not ends("1f1b", 3, 4, early)


@given(names, stages_count, microbatch_count)
def test_a_tensor_comes_while_the_stage_computes(
    schedule: ScheduleName, stages: int, microbatches: int
) -> None:
    """A receive is posted before what the stage does while that input is made; where two stages
    make each other's next inputs at one time, only the gradient's is.
    """
    ones = [1.0] * stages
    slots = timeline(schedule, ones, ones, microbatches)
    began = {(slot.stage, slot.action): slot.start_s for slot in slots}
    for (stage, action), count in needs_of(schedule, stages, microbatches).items():
        sender = stage - 1 if action.kind == "forward" else stage + 1
        for number, own in enumerate(stage_order(schedule, stage, stages, microbatches)):
            if began[stage, own] == began[sender, action]:
                assert count <= number + (own.kind == "backward" and action.kind == "forward")


@given(names, stages_count, microbatch_count)
def test_every_input_from_another_stage_is_received_before_it_is_used(
    schedule: ScheduleName, stages: int, microbatches: int
) -> None:
    for stage in range(stages):
        order = stage_order(schedule, stage, stages, microbatches)
        needs = done_before_posting(schedule, stage, stages, microbatches)
        sends = {a for a in order if a.kind == "forward" and stage > 0}
        sends |= {a for a in order if a.kind == "backward" and stage < stages - 1}
        assert set(needs) == sends
        assert all(count <= order.index(action) for action, count in needs.items())


@pytest.mark.parametrize(
    ("schedule", "stage", "needed"),
    [
        ("gpipe", 1, {"F0": 0, "F1": 0, "F2": 1, "F3": 2, "B0": 4, "B1": 4, "B2": 5, "B3": 6}),
        ("1f1b", 0, {"B0": 3, "B1": 4, "B2": 6, "B3": 7}),
    ],
)
def test_of_three_stages_and_four_micro_batches(
    schedule: ScheduleName, stage: int, needed: dict[str, int]
) -> None:
    found = done_before_posting(schedule, stage, 3, 4)
    assert {str(action): count for action, count in found.items()} == needed


def test_evaluation_receives_one_ahead() -> None:
    needs = done_before_posting("1f1b", 2, 4, 5, training=False)
    assert list(needs.values()) == [0, 0, 1, 2, 3]
