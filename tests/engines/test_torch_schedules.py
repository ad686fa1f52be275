"""Our orders of actions are torch's own, where torch has the schedule."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed.pipelining.schedules import (
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
    _ComputationType,
)

from gnnhpc.core.schedules import ScheduleName, place_of_virtual_stage, stage_order

LETTERS = {
    _ComputationType.FORWARD: "F",
    _ComputationType.FULL_BACKWARD: "B",
    _ComputationType.BACKWARD_INPUT: "B",
    _ComputationType.BACKWARD_WEIGHT: "W",
}


def torchs_order(
    kind: Any, schedule: ScheduleName, stage: int, stages: int, microbatches: int, parts: int
) -> list[str]:
    """Of a stage, as our actions are written; the classes need little of themselves for it."""
    rounds = max(1, microbatches // stages)
    itself = SimpleNamespace(
        pp_group_size=stages,
        num_stages=stages * parts,
        n_local_stages=parts,
        microbatches_per_round=microbatches // rounds,
        number_of_rounds=rounds,
        _n_microbatches=microbatches,
    )
    found = []
    for action in kind._calculate_single_rank_operations(itself, stage):
        if action is None:
            continue
        holder, part = place_of_virtual_stage(schedule, action.stage_index, stages)
        assert holder == stage
        letter = LETTERS[action.computation_type]
        found.append(f"{letter}{action.microbatch_index}" + "'" * part)
    return found


@pytest.mark.parametrize("stages", [2, 4])
@pytest.mark.parametrize(
    ("kind", "schedule", "parts"),
    [
        (ScheduleInterleaved1F1B, "interleaved", 2),
        (ScheduleInterleaved1F1B, "interleaved", 3),
        (ScheduleInterleavedZeroBubble, "zero-bubble", 1),
        (ScheduleZBVZeroBubble, "zbv", 2),
    ],
)
def test_the_same_actions_in_the_same_order(
    kind: Any, schedule: ScheduleName, parts: int, stages: int
) -> None:
    several = [stages, 2 * stages, 3 * stages]
    if schedule != "interleaved":
        several = [*range(1, 2 * stages), *several]
    for microbatches in several:
        for stage in range(stages):
            ours = stage_order(schedule, stage, stages, microbatches, virtual_stages=parts)
            theirs = torchs_order(kind, schedule, stage, stages, microbatches, parts)
            assert list(map(str, ours)) == theirs
