"""Records of steps, of which a test tells what matters to it."""

from __future__ import annotations

from typing import Any

from gnnhpc.records.schema import StepRecord

SECONDS = ("cpu_s", "forward_s", "backward_s", "allreduce_s", "optimizer_s", "wait_s", "data_s")


def step_record(wall_s: float, **told: Any) -> StepRecord:
    """Of a training step of one sample that took so long and nothing but what is told."""
    place = {"phase": "train", "step": 0, "epoch": 0, "warmup": False, "start_s": 0.0, "samples": 1}
    return StepRecord(**place | dict.fromkeys(SECONDS, 0.0) | {"wall_s": wall_s} | told)
