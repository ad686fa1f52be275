"""Receives that keep the device: early, and never so early as to wait for ever.

The machine here is the worst there is: a stage does nothing while a receive that it has posted has
not come. A schedule that ends on it ends on any.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gnnhpc.core.schedules import Action, ScheduleName, input_from, stage_order
from gnnhpc.engines.transfers import done_before_posting

Needs = dict[tuple[int, Action], int]
Plan = tuple[ScheduleName, int, int, int]
"""Schedule, stages, micro-batches, parts a stage."""


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    every: list[ScheduleName] = ["gpipe", "1f1b", "interleaved", "zero-bubble", "zbv"]
    schedule, stages = draw(st.sampled_from(every)), draw(st.integers(2, 5))
    if schedule == "interleaved":
        stages = min(stages, 3)
        return schedule, stages, stages * draw(st.integers(1, 2)), draw(st.integers(2, 3))
    return schedule, stages, draw(st.integers(1, 9)), 2 if schedule == "zbv" else 1


def needs_of(plan: Plan) -> Needs:
    schedule, stages, microbatches, parts = plan
    return {
        (stage, action): count
        for stage in range(stages)
        for action, count in done_before_posting(
            schedule, stage, stages, microbatches, virtual_stages=parts
        ).items()
    }


def orders_of(plan: Plan) -> list[list[Action]]:
    schedule, stages, microbatches, parts = plan
    return [
        stage_order(schedule, s, stages, microbatches, virtual_stages=parts) for s in range(stages)
    ]


def ends(plan: Plan, needs: Needs) -> bool:
    """Whether every stage comes to the end of its order."""
    orders = orders_of(plan)
    schedule, stages, _, parts = plan
    done: list[int] = [0] * stages
    sent: set[tuple[int, Action]] = set()
    moved = True
    while moved:
        moved = False
        for stage, order in enumerate(orders):
            posted = [a for (at, a), count in needs.items() if at == stage and count <= done[stage]]
            waits = any(
                input_from(schedule, stage, stages, parts, action) not in sent for action in posted
            )
            if done[stage] < len(order) and not waits:
                sent.add((stage, order[done[stage]]))
                done[stage] += 1
                moved = True
    return done == [len(order) for order in orders]


@given(plans())
def test_no_stage_waits_for_ever(plan: Plan) -> None:
    assert ends(plan, needs_of(plan))
    assert not ends(plan, dict.fromkeys(needs_of(plan), 0)), "where all are posted at once"


@given(plans())
def test_every_input_from_another_stage_is_received_before_it_is_used(plan: Plan) -> None:
    schedule, stages, _, parts = plan
    for stage, order in enumerate(orders_of(plan)):
        needs = {action: n for (at, action), n in needs_of(plan).items() if at == stage}
        sources = {a: input_from(schedule, stage, stages, parts, a) for a in order}
        received = {a for a, source in sources.items() if source and source[0] != stage}
        assert set(needs) == received
        assert all(count <= order.index(action) for action, count in needs.items())
