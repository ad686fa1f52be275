"""The command `gnnhpc verify`, as users call it."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.defects.running import plant_by_name
from tests.tools.forked import ROOT, started
from tests.validation.custom_models import IMAGES, add_folder, write_model

pytestmark = pytest.mark.distributed

GAT = ["--model", "gat", "--microbatches", "3", "--set", "data.nodes=121"]
GAT += ["--set", "data.edges=500", "--set", "data.features=24"]
SMALL_IMAGES = ["--data", "synthetic-cifar10", "--set", "data.train=96", "--set", "data.test=32"]
SMALL_IMAGES += ["--set", "data.image_size=8", "--set", "batch_size=16", "--microbatches", "2"]


def verify(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`python -m gnnhpc verify`, which starts its ranks itself."""
    command = [sys.executable, "-m", "gnnhpc", "verify", *arguments]
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=env, check=False)


def test_a_right_layout_passes(tmp_path: Path) -> None:
    found = verify(tmp_path, *GAT, "--layout", "pp2")
    assert found.returncode == 0, found.stderr
    assert "PASSED: 3 steps and an evaluation agree with one process" in found.stdout
    assert "layer0.attention" in found.stdout


def test_a_wrong_one_fails_with_its_cause(tmp_path: Path) -> None:
    command = ["verify", *GAT, "--layout", "pp2"]
    plant = partial(plant_by_name, "activations sent in half precision")
    with started(command, 2, tmp_path, plant=plant) as ranks:
        assert 1 in ranks.wait()
        printed = ranks.out(0)
    assert "FAILED: outputs: layer1" in " ".join(printed.split())


def test_what_cannot_be_compared_is_inconclusive(tmp_path: Path) -> None:
    write_model(
        tmp_path,
        IMAGES,
        ("return self.lin(x).tanh()", "return nn.functional.dropout(self.lin(x).tanh())"),
    )
    command = ["verify", "--model", "net:Net", "--layout", "seq", *SMALL_IMAGES]
    plant = partial(add_folder, tmp_path)
    with started(command, 1, tmp_path, plant=plant) as ranks:
        assert ranks.wait() == [1], ranks.err(0)
        assert "INCONCLUSIVE: layer middle returns two different outputs" in ranks.out(0)
