"""Layer costs are measured where the run will compute.

The meta device stands for a GPU where only the place of tensors matters: it computes nothing, and
refuses those of another device.
"""

from __future__ import annotations

import pytest
import torch

from gnnhpc.batches.batch import MicroBatch
from gnnhpc.engines.layer_profile import measure_layers
from gnnhpc.experiment.stage_cut import outline
from gnnhpc.models.context import Context
from gnnhpc.training.loss_and_metrics import MeanLoss
from gnnhpc.training.setup import build_task
from tests.tools.cells import vig

EXPERIMENT = vig(microbatches=1)
OUTLINES = outline(EXPERIMENT)
ROWS = 4


@pytest.mark.parametrize("kind", ["cpu", "meta"])
def test_layers_are_built_where_their_inputs_are(kind: str) -> None:
    device = torch.device(kind)
    inputs = torch.zeros((ROWS, *OUTLINES[0].inputs), device=device)
    targets = torch.zeros(ROWS, dtype=torch.int64, device=device)
    example = MicroBatch(inputs, {"train": targets}, Context())
    loss = MeanLoss(build_task(EXPERIMENT), 1)
    costs = measure_layers(EXPERIMENT, OUTLINES, example, loss, device)
    assert len(costs) == len(OUTLINES)
    assert all(work > 0 for work, _ in costs)
