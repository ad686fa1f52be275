"""Loss, labels and tallies, held against sums made row by row."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gnnhpc.batches.batch import Batch, MicroBatch
from gnnhpc.graphs.graph import IGNORED
from gnnhpc.models.context import Context
from gnnhpc.tasks.classification import ImageClassification, NodeClassification

CLASSES = 4
labels = st.lists(st.sampled_from([*range(CLASSES), IGNORED]), min_size=1, max_size=12)


def logits_of(rows: int, seed: int) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(rows, CLASSES, generator=draw, dtype=torch.float64)


def loss_of(logits: Tensor, target: list[int]) -> float:
    """Minus the log of the softmax's share of each labelled row's class, summed."""
    total = 0.0
    for row, label in zip(logits.tolist(), target, strict=True):
        if label != IGNORED:
            total += math.log(sum(map(math.exp, row))) - row[label]
    return total


def right_of(logits: Tensor, target: list[int]) -> int:
    rows = zip(logits.tolist(), target, strict=True)
    return sum(label != IGNORED and row[label] == max(row) for row, label in rows)


def counted(target: list[int]) -> int:
    return sum(label != IGNORED for label in target)


def batch_of(*microbatches: dict[str, list[int]]) -> Batch:
    made = tuple(
        MicroBatch(None, {split: torch.tensor(t) for split, t in targets.items()}, Context(index))
        for index, targets in enumerate(microbatches)
    )
    return Batch(made, 0, 0, 0, np.empty(0, np.int64), 0)


@given(labels, st.integers(0, 99))
def test_the_loss_is_the_sum_over_labelled_rows(target: list[int], seed: int) -> None:
    logits, expected = logits_of(len(target), seed), None
    expected = loss_of(logits, target)
    targets = {"train": torch.tensor(target), "test": torch.full((len(target),), IGNORED)}
    of_logits = ImageClassification("logits")
    of_shares = NodeClassification("log_probabilities")
    assert float(of_logits.summed_loss(logits, targets, "train")) == pytest.approx(expected)
    assert float(of_shares.summed_loss(logits.log_softmax(1), targets, "train")) == pytest.approx(
        expected
    )
    assert float(of_logits.summed_loss(logits, targets, "test")) == 0.0
    # Of what is no logarithm of a share, only the label's own entry counts.
    plain = -sum(r[t] for r, t in zip(logits.tolist(), target, strict=True) if t != IGNORED)
    assert float(of_shares.summed_loss(logits, targets, "train")) == pytest.approx(plain)


@given(labels)
def test_rows_without_a_label_are_not_counted(target: list[int]) -> None:
    task = NodeClassification("logits")
    targets = {"train": torch.tensor(target), "val": torch.tensor([0, IGNORED, 1])}
    assert task.labelled(targets, "train") == counted(target)
    assert task.labelled(targets, "val") == 2


def test_a_row_without_a_label_gets_no_gradient() -> None:
    logits = logits_of(3, 0).requires_grad_()
    targets = {"train": torch.tensor([1, IGNORED, 2])}
    ImageClassification("logits").summed_loss(logits, targets, "train").backward()
    assert logits.grad is not None
    assert not logits.grad[1].any()
    share = logits.detach().softmax(1)
    share[0, 1] -= 1
    share[2, 2] -= 1
    assert torch.allclose(logits.grad[[0, 2]], share[[0, 2]])


@given(labels, labels, st.integers(0, 99))
def test_a_tally_adds_micro_batches(one: list[int], other: list[int], seed: int) -> None:
    task = ImageClassification("logits")
    outputs = [logits_of(len(one), seed), logits_of(len(other), seed + 1)]
    for phase in ("train", "test"):
        tally = task.tally(phase, outputs, batch_of({phase: one}, {phase: other}))
        count = counted(one) + counted(other)
        loss = loss_of(outputs[0], one) + loss_of(outputs[1], other)
        assert tally["loss"] == (pytest.approx(loss), count)
        assert tally["accuracy"] == (right_of(outputs[0], one) + right_of(outputs[1], other), count)
        assert tuple(tally) == task.metrics(phase) == ("loss", "accuracy")


def test_outputs_and_micro_batches_must_pair() -> None:
    with pytest.raises(ValueError, match="zip"):
        ImageClassification("logits").tally(
            "train", [logits_of(1, 0)] * 2, batch_of({"train": [0]})
        )
    with pytest.raises(ValueError, match="zip"):
        nodes = batch_of({"test": [0], "val": [0]}, {"test": [1], "val": [1]})
        NodeClassification("logits").tally("test", [logits_of(1, 0)], nodes)


@given(labels, st.integers(0, 99), st.data())
def test_nodes_of_both_other_splits_are_told_apart(
    test: list[int], seed: int, data: st.DataObject
) -> None:
    val = data.draw(
        st.lists(labels.flatmap(st.sampled_from), min_size=len(test), max_size=len(test))
    )
    task = NodeClassification("logits")
    outputs = [logits_of(len(test), seed), logits_of(len(test), seed + 1)]
    targets = {"test": test, "val": val}
    tally = task.tally("test", outputs, batch_of(targets, targets))
    assert tuple(tally) == task.metrics("test")
    assert task.metrics("test") == ("loss", "accuracy", "val_accuracy", "test_accuracy")
    right = {split: sum(right_of(o, t) for o in outputs) for split, t in targets.items()}
    assert tally["val_accuracy"] == (right["val"], 2 * counted(val))
    assert tally["test_accuracy"] == tally["accuracy"] == (right["test"], 2 * counted(test))


def test_training_nodes_have_no_other_splits() -> None:
    task = NodeClassification("logits")
    tally = task.tally("train", [logits_of(2, 0)], batch_of({"train": [0, 1]}))
    assert tuple(tally) == task.metrics("train") == ("loss", "accuracy")
