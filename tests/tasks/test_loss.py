"""A replica's share of the loss: the mean over replicas is the mean over all labelled rows."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gnnhpc.batches.batch import MicroBatch
from gnnhpc.models.context import Context
from gnnhpc.tasks.classification import NodeClassification
from gnnhpc.tasks.task import Loss

task = NodeClassification("logits")


@given(st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=3), min_size=1, max_size=4))
def test_replicas_of_any_size_average_to_the_mean(rows: list[list[int]]) -> None:
    """`rows`: of each micro-batch of each replica."""
    labelled = sum(map(sum, rows))
    logits = torch.arange(labelled * 3, dtype=torch.float64).sin().view(-1, 3)
    target = torch.arange(labelled) % 3
    loss = Loss(task, replicas=len(rows))
    sizes = [size for replica in rows for size in replica]
    pieces = zip(logits.split(sizes), target.split(sizes), strict=True)
    parts = [loss(x, MicroBatch(None, {"train": t}, Context()), labelled) for x, t in pieces]
    whole = task.summed_loss(logits, {"train": target}, "train")
    assert float(sum(parts)) / len(rows) == pytest.approx(float(whole) / labelled)
