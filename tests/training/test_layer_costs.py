"""Layer costs are measured where the run will compute.

The meta device stands for a GPU where only the place of tensors matters: it computes nothing, and
refuses those of another device.
"""

from __future__ import annotations

import pytest
import torch

from gnnhpc.batches.batch import MicroBatch
from gnnhpc.engines.layer_profile import LayerCost, measure_layers
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.experiment.stage_cut import outline
from gnnhpc.models.context import Context
from gnnhpc.training.loss_and_metrics import MeanLoss
from gnnhpc.training.setup import build_task
from tests.tools.cells import vig

EXPERIMENT = vig(microbatches=1)
OUTLINES = outline(EXPERIMENT)
ROWS = 4


def profiled(experiment: Experiment, device: torch.device) -> list[LayerCost]:
    inputs = torch.zeros((ROWS, *OUTLINES[0].inputs), device=device)
    targets = torch.zeros(ROWS, dtype=torch.int64, device=device)
    example = MicroBatch(inputs, {"train": targets}, Context())
    return measure_layers(
        experiment, OUTLINES, example, MeanLoss(build_task(experiment), 1), device
    )


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_layers_are_built_where_their_inputs_are(device: str) -> None:
    costs = profiled(EXPERIMENT, torch.device(device))
    assert [cost.name for cost in costs] == [layer.name for layer in OUTLINES]
