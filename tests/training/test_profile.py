"""A profile computes where the run will, and reads a device's marks once it has reached them.

The meta device stands for a GPU where only the place of tensors matters: it computes nothing, and
refuses those of another device.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gnnhpc.batches.batch import MicroBatch
from gnnhpc.engines.autograd import backward
from gnnhpc.engines.stage import Stage
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.experiment.stage_cut import outline
from gnnhpc.models.context import Context
from gnnhpc.tasks.build import build_task
from gnnhpc.tasks.task import Loss
from gnnhpc.training import profile as profiling
from gnnhpc.training.layer_costs import LayerCost, profile
from tests.tools.cells import vig
from tests.tools.device import Stream, fake_device

EXPERIMENT = vig(microbatches=1)
OUTLINES = outline(EXPERIMENT)
ROWS = 4


def profiled(experiment: Experiment, device: torch.device) -> list[LayerCost]:
    inputs = torch.zeros((ROWS, *OUTLINES[0].inputs), device=device)
    targets = torch.zeros(ROWS, dtype=torch.int64, device=device)
    example = MicroBatch(inputs, {"train": targets}, Context())
    return profile(experiment, OUTLINES, example, Loss(build_task(experiment), 1), device)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_layers_are_built_where_their_inputs_are(device: str) -> None:
    costs = profiled(EXPERIMENT, torch.device(device))
    assert [cost.name for cost in costs] == [layer.name for layer in OUTLINES]


def test_a_device_is_timed_by_its_own_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host gives out its work in no time; the seconds are those that the device takes."""
    with fake_device(monkeypatch) as (stream, clock):
        monkeypatch.setattr(profiling, "Clock", lambda device: clock)
        clock.device = torch.device("cpu")
        monkeypatch.setattr(Stage, "forward", slow(stream, Stage.forward, 5.0))
        monkeypatch.setattr(profiling, "backward", slow(stream, backward, 11.0))
        costs = profiled(EXPERIMENT, torch.device("cpu"))
    assert [cost.forward_s for cost in costs] == pytest.approx([5e-3] * len(OUTLINES))
    assert [cost.backward_s for cost in costs] == pytest.approx([11e-3] * len(OUTLINES))


def slow(stream: Stream, function: object, ms: float) -> object:
    def given(*arguments: object) -> Tensor:
        stream.give(ms)
        return function(*arguments)  # type: ignore[operator,no-any-return]

    return given
