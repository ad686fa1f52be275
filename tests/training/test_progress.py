"""A cell that is run by hand is waited for; what its log says shows the test of resuming."""

from __future__ import annotations

import re
import sys

import pytest

from gnnhpc.core.layout import Layout
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.training.listeners import progress_listener
from gnnhpc.training.loop import TrainingLoop
from tests.engines.steps import CPU, parts_of
from tests.tools.cells import gat


def test_a_terminal_shows_a_bar(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    experiment = gat(train_steps=3, test_steps=0)
    shown = progress_listener(experiment, Mesh(Layout(), 0, CPU), "rank-0000.log")
    TrainingLoop(parts_of(experiment), [shown]).run()
    bar = capsys.readouterr().err
    assert re.search(r"train \d\.\d{3} s a step, loss \d\.\d{4}, accuracy", bar)
    assert "100%" in bar
