"""What a running cell prints."""

from __future__ import annotations

import sys

import pytest
import torch

from gnnhpc.core.layout import Layout
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.engines.engine import StepOutput
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.records.schema import Phase, StepRecord
from gnnhpc.training.events import StepTaken
from gnnhpc.training.listeners import progress_listener
from gnnhpc.training.step_record import StepMetrics
from tests.engines.steps import parts_of
from tests.tools.cells import gat


def taken(experiment: Experiment, phase: Phase = "train") -> StepTaken:
    """The first step of a phase, with what the progress shows of it."""
    parts = parts_of(experiment)
    with parts.batches.open("train", 0, 1) as batches:
        batch = next(batches)
    record = StepRecord(
        *(phase, 0, 0, False, 0.0, 0.25, 0.0, None, None, None, None, None, 0.0, batch.samples)
    )
    metrics = StepMetrics(1.5, {"accuracy": 0.25})
    return StepTaken(phase, 0, batch, StepOutput(), record, [], metrics)


def mesh(rank: int) -> Mesh:
    return Mesh(Layout(1, 2), rank, torch.device("cpu"))


def test_rank_0_shows_the_loss_of_the_last_stage_and_other_logs_where_it_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    experiment = gat(train_steps=1)
    for rank in (0, 1):
        shown = progress_listener(experiment, mesh(rank), "rank-0000.log")
        shown.step_taken(taken(experiment))
        shown.step_taken(taken(experiment, "test"))
    assert capsys.readouterr().out.splitlines() == [
        "train step 1 of 1: 0.2500 s, loss 1.5000, accuracy 0.250",
        "test step 1: 0.2500 s, loss 1.5000, accuracy 0.250",
        "rank 1 (stage 1, replica 0): progress and loss are in rank-0000.log",
    ]


def test_a_terminal_shows_a_bar(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A cell that is run by hand is waited for."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    experiment = gat(train_steps=1)
    shown = progress_listener(experiment, mesh(0), "rank-0000.log")
    shown.training_begins(0)
    shown.step_taken(taken(experiment))
    shown.training_ended(1)
    bar = capsys.readouterr().err
    assert "train 0.250 s a step, loss 1.5000" in bar
    assert "100%" in bar
