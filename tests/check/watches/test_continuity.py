"""Parameters that do not train stay what they are; what a forward moves is a buffer."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from gnnhpc.check.watches.continuity import Continuity
from gnnhpc.check.watches.findings import Findings
from gnnhpc.core.layer_specs import LayerSpec
from gnnhpc.engines.stage import Stage
from gnnhpc.models.context import Context


class Codebook(nn.Module):
    """Moves one of its rows in each forward."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        codes = torch.zeros(64, 2)
        if kind == "buffer":
            self.register_buffer("codes", codes)
        else:
            self.codes = nn.Parameter(codes, requires_grad=False)
        self.moves = kind != "still"

    def forward(self, x: Tensor, context: Context) -> Tensor:
        if self.moves:
            self.codes.data[7] += 1
        return x


@pytest.mark.parametrize("kind", ["still", "buffer", "parameter"])
def test_what_does_not_train_does_not_move(kind: str) -> None:
    findings = Findings()
    stage = Stage([LayerSpec("only", (2,), (2,))], [Codebook(kind)], timer=None)
    watch = Continuity(stage, None, findings)
    for step in range(3):
        watch.check("train", step)
        stage(torch.ones(3, 2), Context(step=step))
        watch.after_training_step(step)
    told = [str(finding) for finding in findings.kept]
    assert len(told) == (2 if kind == "parameter" else 0)
    assert all("only.codes moved in the step and does not train" in each for each in told)
