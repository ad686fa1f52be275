"""How early a stage may post a receive that occupies its device until the tensor has arrived.

A receive of NCCL is a kernel that waits on the GPU, and later work on that GPU may have to wait for
it: CUDA may synchronise the whole device to load a kernel or to free memory. A stage that posts
receives too early can therefore wait for a stage that waits for the first one's later work.

All actions of all stages form one line, in the order in which the schedule would begin them if each
took equally long. A receive is posted once its stage has done every action that comes before the
sending action in that line. Then some stage can always go on: the stage whose action is next in the
line has posted receives only for actions before it, and these have been done.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gnnhpc.core.schedules import (
    Action,
    Kind,
    ScheduleName,
    Slot,
    input_from,
    timeline,
    virtual_stage_number,
)

_TURN: Final[Mapping[Kind, int]] = {"backward": 0, "forward": 1, "weights": 2}
"""Order of kinds that begin together; gradients of weights are sent to nobody."""


def done_before_posting(
    schedule: ScheduleName,
    stage: int,
    stages: int,
    microbatches: int,
    *,
    virtual_stages: int = 1,
    training: bool = True,
) -> dict[Action, int]:
    """For each action whose input another stage sends, in the order of sending: how many actions of
    this stage are launched on the device before the receive may be posted."""
    ones = [1.0] * (stages * virtual_stages)
    slots = timeline(
        *(schedule, ones, ones, microbatches),
        weights_s=ones,
        virtual_stages=virtual_stages,
        training=training,
    )
    mine = [slot.action for slot in slots if slot.stage == stage]
    receives = {
        input_from(schedule, stage, stages, virtual_stages, action): action for action in mine
    }
    found: dict[Action, int] = {}
    done = 0
    for slot in sorted(slots, key=lambda slot: _place(schedule, slot, stages)):
        if slot.stage == stage:
            done += 1
        elif (slot.stage, slot.action) in receives:
            found[receives[slot.stage, slot.action]] = done
    return found


def _place(schedule: ScheduleName, slot: Slot, stages: int) -> tuple[float, int, int]:
    """The place of a slot in the line; of slots that begin together, senders come before
    receivers."""
    kind = slot.action.kind
    number = virtual_stage_number(schedule, slot.stage, stages, slot.action.virtual_stage)
    return slot.start_s, _TURN[kind], number if kind == "forward" else -number
