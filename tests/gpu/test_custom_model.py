"""A custom model on a GPU, with random numbers of the device's generator and buffers there."""

from __future__ import annotations

from pathlib import Path

import pytest

from gnnhpc.core.run_paths import RunPaths
from gnnhpc.experiment.copy_custom_models import copy_models
from tests.gpu.test_cells import SHARED, ran, visible
from tests.training.test_resumed_custom_model import HELD, cell, whole_and_in_parts

pytestmark = [pytest.mark.gpu, pytest.mark.distributed]
KINDS = {
    "torch": HELD["torch"],
    "torch on both": (
        "pass",
        "x = nn.functional.dropout(x, 0.3) * (0.5 + float(torch.rand(())))",
    ),
    "numpy": HELD["numpy"],
    "buffer": HELD["buffer"],
}
LAYOUTS = ["seq", "pp2", "dp2"]


def of_one_gpu() -> dict[str, str]:
    return SHARED | {"CUDA_VISIBLE_DEVICES": visible()[0]}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", KINDS)
def test_forwards_computed_again_change_no_loss(kind: str, layout: str, tmp_path: Path) -> None:
    losses = []
    for checkpoint in ("always", "never"):
        changes = {"layout": layout, "activation_checkpointing": checkpoint}
        experiment = cell(tmp_path / "source", KINDS[kind], device="gpu", **changes)
        copy_models(RunPaths(tmp_path / checkpoint), [experiment])
        found = ran(tmp_path / checkpoint, experiment, env=of_one_gpu())
        assert found.result.valid, found.err
        losses.append(found.losses())
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ["torch", "buffer"])
def test_a_resume_goes_on_with_what_was_drawn(kind: str, layout: str, tmp_path: Path) -> None:
    whole, parts = whole_and_in_parts(tmp_path, KINDS[kind], layout, env=of_one_gpu(), device="gpu")
    assert whole.losses() == [loss for part in parts for loss in part.losses()]
    assert parts[1].result.valid, parts[1].result.audit
