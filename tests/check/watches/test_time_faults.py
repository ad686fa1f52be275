"""Recorded seconds of groups and of waiting for data are held against a second reading."""

from __future__ import annotations

from typing import Any

import pytest

from gnnhpc.check.watches.part_faults import StageFacts
from gnnhpc.check.watches.second_clock import SeenStep
from gnnhpc.check.watches.time_faults import TimeFaults
from gnnhpc.engines.timing import Span, StepTimes
from gnnhpc.records.schema import StepRecord

LAYERS = {"block0.ffn": [0.1, 0.2], "block0.grapher": [0.3, 0.4], "readout": [0.05, 0.05]}
GROUPS = {"block0.ffn": "block0", "block0.grapher": "block0", "readout": "readout"}
RIGHT = {"block0": [0.4, 0.6], "readout": [0.05, 0.05]}


def told(groups: dict[str, Any], data_s: list[float], read_s: list[float]) -> list[str]:
    faults = TimeFaults()
    faults.parts.stage = StageFacts(GROUPS)
    for step, (data, read) in enumerate(zip(data_s, read_s, strict=True)):
        spans = [Span("forward", 0, 0.0, 0.5), Span("backward", 0, 0.5, 1.2)]
        times = StepTimes(1.2, 0.0, spans, LAYERS, 0, None)
        record = StepRecord(
            *("train", step, 0, False, 2.0 * step, 1.2),
            **dict.fromkeys(("cpu_s", "allreduce_s", "optimizer_s", "wait_s"), 0.0),
            forward_s=0.5,
            backward_s=0.7,
            data_s=data,
            samples=1,
            loss=None,
            groups=groups,
        )
        seen = SeenStep(1.2, 1.2, 2.0 * step, 2.0 * step, read_s=read)
        faults.compare(record, times, seen)
    return faults.told()


@pytest.mark.parametrize(
    "groups",
    [
        {"block0": RIGHT["readout"], "readout": RIGHT["block0"]},
        {"block0": RIGHT["block0"]},
        {"block0": [0.4, 0.7], "readout": [0.05, 0.05]},
    ],
)
def test_a_group_s_seconds_are_those_of_its_layers(groups: dict[str, Any]) -> None:
    assert told(RIGHT, [0.0], [0.0]) == []
    (fault,) = told(groups, [0.0], [0.0])
    assert fault.startswith("a group's seconds that are not those of its layers in 1 steps")


@pytest.mark.parametrize(
    ("data_s", "read_s", "words"),
    [
        # What is around the wait is short; one step in which it is not says nothing.
        ([0.02, 0.03, 0.0], [0.021, 0.031, 0.001], ""),
        ([0.02, 0.0, 0.02], [0.021, 0.05, 0.021], ""),
        ([0.0, 0.0, 0.02], [0.05, 0.05, 0.021], "data_s holds 0.0000 s of the 0.1000 s that ba"),
        ([0.0, 0.0, 0.0], [0.001, 0.001, 0.001], ""),
        ([0.02, 0.02, 0.02], [0.001, 0.03, 0.03], "data_s longer than taking the batch in 1 st"),
    ],
)
def test_waiting_for_data_is_a_part_of_taking_it(
    data_s: list[float], read_s: list[float], words: str
) -> None:
    found = told(RIGHT, data_s, read_s)
    assert len(found) == bool(words), found
    assert "".join(found).startswith(words)
