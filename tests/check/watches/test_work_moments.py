"""When a micro-batch's backward ends, also where another's last parts come before its first."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gnnhpc.check.watches.work_moments import WorkMoments
from gnnhpc.core.layer_specs import LayerSpec
from gnnhpc.engines.stage import Stage
from gnnhpc.models.context import Context
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


def test_an_input_that_is_the_same_in_every_step_keeps_no_hooks() -> None:
    """As a buffer is that torch's schedule receives into."""
    stage = Stage([LayerSpec("only", (4,), (4,))], [_Linear()], None)
    moments = WorkMoments()
    moments.attach(stage, None)
    received = torch.ones(2, 4, requires_grad=True)
    for _ in range(3):
        moments.begin_step(0.0)
        stage(received, Context(0, 0)).sum().backward()
        assert len(received._backward_hooks or ()) == 1
        moments.end_step()
        moments.read()
        assert ("backward", (0, 0)) in moments.ends
    assert not received._backward_hooks


class _Linear(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 4)

    def forward(self, x: Tensor, _context: Context) -> Tensor:  # type: ignore[override]
        return super().forward(x)
