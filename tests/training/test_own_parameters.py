"""Own models whose outline and modules disagree, or that freeze layers, in a pipeline."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools.ranks import ROOT

pytestmark = pytest.mark.distributed

TEXT = """
from gnnhpc import Layer, Model

class Net(Model):
    takes = ("graph",)
    first: str = "nothing"
    reported: int | None = None

    def outline(self, facts):
        f, c = facts.features, facts.classes
        first = Layer("timer", (f,), (f,), parameters=self.reported)
        return [first, Layer("half", (f,), (8,)), Layer("last", (8,), (c,))]

    def build(self, layer, options):
        from torch import nn

        class Dense(nn.Module):
            def __init__(self):
                super().__init__()
                self.dense = nn.Linear(layer.inputs[0], layer.shape[0])

            def forward(self, x, context):
                return self.dense(x)

        class Same(nn.Module):
            def forward(self, x, context):
                return x * 1.5

        if layer.name != "timer":
            return Dense()
        return Same() if self.first == "nothing" else Dense().requires_grad_(self.first == "train")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "net.py").write_text(TEXT)
    return tmp_path


def verify(folder: Path, *settings: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gnnhpc", "verify", "--model", "net:Net", "--layout", "pp2"]
    command += ["--microbatches", "2", "--set", "balance=[1,2]", "--set", "data.nodes=60"]
    command += ["--set", "data.edges=200", "--set", "data.features=16"]
    for setting in settings:
        command += ["--set", setting]
    return subprocess.run(
        command,
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "HOME": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


@pytest.mark.parametrize(
    "settings",
    [["model.first=nothing"], ["model.first=frozen"], ["model.first=train"]],
    ids=["no parameters", "frozen", "trained"],
)
@pytest.mark.slow
def test_a_first_stage_of_any_kind_passes(folder: Path, settings: list[str]) -> None:
    """Gradients are sent to those that train, whether or not the outline counts parameters."""
    done = verify(folder, *settings)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASSED" in done.stdout


@pytest.mark.slow
def test_an_outline_that_miscounts_is_reported_at_once(folder: Path) -> None:
    done = verify(folder, "model.first=train", "model.reported=0")
    assert done.returncode != 0
    line = "model net:Net: parameters of timer: found 0 in its outline; allowed: 272"
    assert line in done.stderr
