"""Own models whose outline and modules disagree, or that freeze layers, in a pipeline."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.engines.test_stage_errors import add_folder
from tests.tools.forked import started

pytestmark = pytest.mark.distributed

TEXT = """
from gnnhpc import Layer, Model

class Net(Model):
    takes = ("graph",)
    first: str = "train"
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

        trains = layer.name != "timer" or self.first == "train"
        return Dense().to(options.dtype).requires_grad_(trains)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "net.py").write_text(TEXT)
    return tmp_path


SETTINGS = ["balance=[1,2]", "data.nodes=60", "data.edges=200", "data.features=16"]


def verify(folder: Path, first: str, reported: str = "null") -> tuple[int | None, str]:
    """Exit status of rank 0 and what both ranks print."""
    settings = [*SETTINGS, f"model.first={first}", f"model.reported={reported}"]
    command = ["verify", "--model", "net:Net", "--layout", "pp2", "--microbatches", "2"]
    command += [word for each in settings for word in ("--set", each)]
    with started(command, 2, folder, plant=partial(add_folder, folder)) as ranks:
        status, _ = ranks.wait()
        return status, "".join(ranks.out(n) + ranks.err(n) for n in (0, 1))


@pytest.mark.slow
def test_a_frozen_first_stage_passes(folder: Path) -> None:
    """Gradients are sent to stages that train, whether or not the outline counts parameters."""
    status, printed = verify(folder, "frozen")
    assert status == 0, printed
    assert "PASSED" in printed


@pytest.mark.slow
def test_an_outline_that_miscounts_is_reported_at_once(folder: Path) -> None:
    status, printed = verify(folder, "train", "0")
    assert status != 0
    assert "model net:Net: parameters of timer: found 0 in its outline; allowed: 272" in printed
