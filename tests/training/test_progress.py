"""A cell that is run by hand is waited for; what its log says shows the test of resuming."""

from __future__ import annotations

import sys

import pytest

from gnnhpc.core.layout import Layout
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.engines.engine import StepOutput
from gnnhpc.records.schema import StepRecord
from gnnhpc.training.listeners import StepTaken, progress_listener
from gnnhpc.training.step_record import StepMetrics
from tests.engines.steps import CPU, parts_of
from tests.tools.cells import gat


def test_a_terminal_shows_a_bar(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    experiment = gat(train_steps=1)
    with parts_of(experiment).batches.open("train", 0, 1) as batches:
        batch = next(batches)
    times = (0.0, 0.25, 0.0, None, None, None, None, None, 0.0)
    record = StepRecord("train", 0, 0, False, *times, batch.samples)
    metrics = StepMetrics(1.5, {"accuracy": 0.25})
    shown = progress_listener(experiment, Mesh(Layout(1, 2), 0, CPU), "rank-0000.log")
    shown.training_begins(0)
    shown.step_taken(StepTaken("train", 0, batch, StepOutput(), record, [], metrics))
    shown.training_ended(1)
    bar = capsys.readouterr().err
    assert "train 0.250 s a step, loss 1.5000" in bar
    assert "100%" in bar
