"""When a micro-batch's backward ends, also where another's last parts come before its first."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import pytest
from torch import nn

from gnnhpc.check.watches.work_moments import WorkMoments
from tests.engines.steps import parts_of, take_step
from tests.tools.cells import vig

MICROBATCHES = 6


@pytest.mark.parametrize(
    ("engine", "layout", "checkpoint"),
    [
        ("torchgpipe", "pp3", "always"),
        ("torchgpipe", "pp2", "always"),
        ("torchgpipe", "pp3", "except_last"),
        ("native", "seq", "never"),
    ],
)
def test_a_backward_ends_after_it_has_come_to_each_part(
    engine: str, layout: str, checkpoint: str
) -> None:
    settings = {"engine": engine, "layout": layout, "checkpoint": checkpoint}
    parts = parts_of(vig(**settings, microbatches=MICROBATCHES, batch_size=12))
    moments = WorkMoments()
    moments.attach(parts.stage, None)
    came: dict[int, list[float]] = {}

    def comes(microbatch: int, _gradient: Any) -> None:
        came.setdefault(microbatch, []).append(time.clock_gettime(time.CLOCK_MONOTONIC_RAW))

    def give_hook(_part: nn.Module, given: tuple[Any, ...], output: Any) -> None:
        if output.requires_grad:
            output.register_hook(partial(comes, given[1].microbatch))

    for part in parts.stage.parts:
        part.register_forward_hook(give_hook)
    began_s = time.clock_gettime(time.CLOCK_MONOTONIC_RAW)
    moments.begin_step(began_s)
    take_step(parts)
    moments.end_step()
    moments.read()
    ends = {m: at.at_s for (kind, (_, m)), at in moments.ends.items() if kind == "backward"}
    assert sorted(ends) == sorted(came) == list(range(MICROBATCHES))
    for microbatch, seen in came.items():
        assert len(seen) == len(parts.stage.parts)
        assert began_s + ends[microbatch] > max(seen)
