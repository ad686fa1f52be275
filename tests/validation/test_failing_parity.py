"""Engine parity where a rank fails in it, and where only its hooks see what is wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gnnhpc.batches.sampled import sampled_batches
from gnnhpc.engines.transfers import Sender
from gnnhpc.graphs import layerwise
from tests.defects.defect import around, rank
from tests.tools.backends import needs_compiler
from tests.tools.cells import SAMPLED, gat, manifest_of, run
from tests.tools.forked import ROOT
from tests.validation.parity import checked

pytestmark = pytest.mark.distributed


def sending_fails() -> None:
    def failing(original: Any, sender: Sender, tensor: Tensor) -> None:
        if rank() == 1 and tensor.dtype == torch.float64:
            raise RuntimeError("planted")
        original(sender, tensor)

    around(Sender, "send", failing)


def test_a_rank_that_fails_between_others_ends_the_attempt_as_invalid(tmp_path: Path) -> None:
    (cell,) = manifest_of(tmp_path, gat(layout="pp2"))
    ran = run(tmp_path, cell, plant=sending_fails)
    assert all(ran.statuses)
    (check,) = ran.result.audit
    assert (check.name, check.verdict) == ("engine-parity", "invalid")
    assert "RuntimeError: planted" in check.detail
    assert not ran.result.valid


def few_edges_at_once() -> None:
    """Evaluate the whole graph layer by layer, as one with many edges."""
    for module in (sampled_batches, layerwise):
        module.EDGES_AT_ONCE = 200  # type: ignore[attr-defined]


@needs_compiler
@pytest.mark.parametrize("layout", ["seq", "dp2", "dp2-pp2"])
def test_a_layer_wise_evaluation_agrees(layout: str) -> None:
    cell = SAMPLED | {"layout": layout, "microbatches": 2, "batch_size": 8}
    check = checked(cell, few_edges_at_once)
    assert check.verdict == "ok", check.detail


def test_parity_of_vig_does_not_import_a_compiler() -> None:
    """It would take seconds on every rank."""
    program = (
        "import sys\n"
        "from tests.tools.cells import VIG\n"
        "from tests.validation.test_kernel_parity import parts_of\n"
        "from gnnhpc.validation.engine_parity import check_engine\n"
        "from gnnhpc.validation.kernel_parity import check_kernels\n"
        "from gnnhpc.validation.steps.parity_slice import parity_slice\n"
        "run = parts_of(VIG)\n"
        "(check,) = check_engine(*run, None, parity_slice(run[0]))\n"
        "(other,) = check_kernels(*run, when='start')\n"
        "print(check.verdict, other.verdict)\n"
        "print({'torch._dynamo', 'torch._inductor'} & sys.modules.keys())\n"
    )
    command = [sys.executable, "-c", program]
    found = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert found.stdout.split("\n")[:2] == ["ok ok", "set()"], found.stderr
