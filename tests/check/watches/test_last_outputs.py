"""The engine's outputs are those of the last stage's forwards, of this step alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from gnnhpc.check.watches.last_outputs import LastOutputs
from gnnhpc.engines.stage import Stage
from gnnhpc.models.context import Context


class Twice(nn.Module):
    @property
    def parts(self) -> tuple[nn.Module, ...]:
        return (self,)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        return 2 * x


@pytest.fixture
def stage() -> Stage:
    return Twice()  # type: ignore[return-value]


def outputs_of(stage: Stage) -> list[Tensor]:
    return [stage(torch.full((2, 3), float(m)), Context(m, 0, 0)) for m in range(3)]


def test_outputs_of_the_step_are_the_engine_s_in_their_order(stage: Stage) -> None:
    last = LastOutputs.of(stage, is_last=True)
    last.begin()
    outputs = outputs_of(stage)
    last.end()
    # What a watch evaluates again afterwards is not of the step.
    stage(torch.ones(2, 3), Context(0, 0, 0))
    assert last.other_than(outputs) is None
    assert last.other_than([each.clone() for each in outputs]) is None
    assert "of micro-batch 0 are not" in str(last.other_than(outputs[::-1]))
    assert "all are not" in str(last.other_than(outputs[:2]))
    last.begin()
    assert "all are not" in str(last.other_than(outputs))


def test_other_stages_have_no_outputs_to_keep(stage: Stage) -> None:
    last = LastOutputs.of(stage, is_last=False)
    last.begin()
    outputs_of(stage)
    assert last.by_microbatch == {}
