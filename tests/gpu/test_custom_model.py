"""A custom model on a GPU, with random numbers of the device's generator and buffers there."""

from __future__ import annotations

from pathlib import Path

import pytest

from gnnhpc.core.run_paths import RunPaths
from gnnhpc.experiment.custom_model_files import copy_models
from tests.gpu.test_cells import SHARED, visible
from tests.tools.cells import Ran, manifest_of, run
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


def ran(root: Path, kind: str, **changes: object) -> Ran:
    experiment = cell(root / "source", KINDS[kind], device="gpu", **changes)
    (one,) = manifest_of(root / "run", experiment)
    copy_models(RunPaths(root / "run"), [experiment])
    found = run(root / "run", one, env=of_one_gpu())
    assert set(found.statuses) == {0}, found.err
    wrong = {c.name: c.detail for c in found.result.audit if c.verdict == "invalid"}
    assert not wrong
    return found


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", KINDS)
def test_forwards_computed_again_change_no_loss(kind: str, layout: str, tmp_path: Path) -> None:
    again, once = (
        ran(tmp_path / checkpoint, kind, layout=layout, activation_checkpointing=checkpoint)
        for checkpoint in ("always", "never")
    )
    assert again.losses() == pytest.approx(once.losses(), rel=1e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ["torch", "buffer"])
def test_a_resume_goes_on_with_what_was_drawn(kind: str, layout: str, tmp_path: Path) -> None:
    whole, parts = whole_and_in_parts(tmp_path, KINDS[kind], layout, env=of_one_gpu(), device="gpu")
    assert whole.losses() == [loss for part in parts for loss in part.losses()]
    assert parts[1].result.valid, parts[1].result.audit
