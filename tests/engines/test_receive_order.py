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


def ends(plan: Plan, orders: list[list[Action]], needs: Needs) -> bool:
    """Whether every stage comes to the end of its order."""
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
def test_every_input_is_received_before_it_is_used_and_no_stage_waits_for_ever(plan: Plan) -> None:
    schedule, stages, microbatches, parts = plan
    orders, needs = [], {}
    for stage in range(stages):
        place = schedule, stage, stages, microbatches
        order = stage_order(*place, virtual_stages=parts)
        mine = done_before_posting(*place, virtual_stages=parts)
        sources = {a: input_from(schedule, stage, stages, parts, a) for a in order}
        assert set(mine) == {a for a, source in sources.items() if source and source[0] != stage}
        assert all(count <= order.index(action) for action, count in mine.items())
        orders.append(order)
        needs |= {(stage, action): count for action, count in mine.items()}
    assert ends(plan, orders, needs)
    assert not ends(plan, orders, dict.fromkeys(needs, 0)), "where all are posted at once"
