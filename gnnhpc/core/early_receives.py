"""How early a stage may post a receive that keeps its device until the tensor has come.

A receive of NCCL is a kernel that waits on the GPU, and what the GPU is given after it may have to
wait too: CUDA may synchronise the whole device to load a kernel or to free memory. So a stage that
posts receives too early can wait for one that waits for another stage, which in turn waits for
what the first has yet to do.

All actions of all stages, in the order in which the schedule would begin them if each took equally
long, are one line. A receive is posted when its stage has done what stands in that line before the
action that sends. Then there is always somebody who can go on: whose turn it is in the line has
posted no receive but of what stands before it, and so has been done.
"""

from __future__ import annotations

from gnnhpc.core.schedule import Action, ScheduleName, Slot, timeline


def done_before_posting(
    schedule: ScheduleName, stage: int, stages: int, microbatches: int, *, training: bool = True
) -> dict[Action, int]:
    """For each action whose input another stage sends: how many own actions are done before it may
    be posted, in the stage's order. Done means given to the device.
    """
    ones = [1.0] * stages
    slots = timeline(schedule, ones, ones, microbatches, training=training)
    line = sorted(slots, key=_place)
    found: dict[Action, int] = {}
    done = 0
    for slot in line:
        if slot.stage == stage:
            done += 1
        elif _receiver(slot.stage, slot.action) == stage:
            found[slot.action] = done
    return found


def _place(slot: Slot) -> tuple[float, bool, int]:
    """Where a slot stands in the line; of those that begin together, senders before receivers."""
    is_forward = slot.action.kind == "forward"
    return slot.start_s, is_forward, slot.stage if is_forward else -slot.stage


def _receiver(stage: int, action: Action) -> int:
    """The stage that needs what this one's action makes; outside the pipeline for the last ones."""
    return stage + 1 if action.kind == "forward" else stage - 1
