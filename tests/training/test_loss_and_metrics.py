"""Losses and metrics of both tasks, compared with sums made row by row."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gnnhpc.batches.batch import Batch, MicroBatch
from gnnhpc.graphs.graph import IGNORED
from gnnhpc.models.model import Context
from gnnhpc.training.loss_and_metrics import Classification, LinkPrediction

CLASSES = 4
IMAGES, NODES = Classification("logits", splits=False), Classification("logits", splits=True)
labels = st.lists(st.sampled_from([*range(CLASSES), IGNORED]), min_size=1, max_size=12)


def logits_of(rows: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(rows, CLASSES, generator=generator, dtype=torch.float64)


def loss_of(logits: Tensor, target: list[int]) -> float:
    """Minus the log of the softmax's share of each row's class, summed over valid targets."""
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


@given(labels, labels, st.integers(0, 99))
def test_losses_and_metrics_add_up_over_micro_batches(
    one: list[int], other: list[int], seed: int
) -> None:
    outputs = [logits_of(len(one), seed), logits_of(len(other), seed + 1)]
    shares = [each.log_softmax(1) for each in outputs]
    of_shares = Classification("log_probabilities", splits=False)
    count = counted(one) + counted(other)
    loss = loss_of(outputs[0], one) + loss_of(outputs[1], other)
    right = right_of(outputs[0], one) + right_of(outputs[1], other)
    for task, phase, found in (
        (IMAGES, "train", outputs),
        (IMAGES, "test", outputs),
        (NODES, "train", outputs),
        (of_shares, "train", shares),
    ):
        batch = batch_of({phase: one}, {phase: other})
        sums = task.metric_sums(phase, found, batch)  # type: ignore[arg-type]
        assert sums == {"loss": (pytest.approx(loss), count), "accuracy": (right, count)}
        valid = [task.valid_targets(m.targets, phase) for m in batch.microbatches]  # type: ignore[arg-type]
        assert valid == [counted(one), counted(other)]
    both = batch_of({"test": one, "val": one[::-1]}, {"test": other, "val": other})
    sums = NODES.metric_sums("test", outputs, both)
    assert tuple(sums) == NODES.metrics("test")
    assert sums["test_accuracy"] == sums["accuracy"] == (right, count)
    val = right_of(outputs[0], one[::-1]) + right_of(outputs[1], other)
    assert sums["val_accuracy"] == (val, count)


def pairs_of(generator: torch.Generator, links: int, negatives: int) -> Tensor:
    rows = torch.randint(9, (links + negatives, 2), generator=generator)
    return torch.cat((rows, (torch.arange(links + negatives) < links).long()[:, None]), 1)


def ranked(hits: int, outputs: Tensor, *pairs: Tensor) -> dict[str, tuple[float, float]]:
    parts = [SimpleNamespace(targets={"val": each, "test": each}) for each in pairs]
    batch = cast("Batch", SimpleNamespace(microbatches=parts))
    return LinkPrediction(hits).metric_sums("test", [outputs] * len(parts), batch)


def by_hand(outputs: Tensor, pairs: Tensor, k: int) -> dict[str, float]:
    score = [float(outputs[u] @ outputs[v]) for u, v, _ in pairs.tolist()]
    links = [s for s, (_, _, is_link) in zip(score, pairs.tolist(), strict=True) if is_link]
    pool = sorted((s for s, p in zip(score, pairs.tolist(), strict=True) if not p[2]), reverse=True)
    ranks = [1 + sum((n > s) + 0.5 * (n == s) for n in pool) for s in links]
    soft = [float(np.logaddexp(0, n)) for n in pool]
    return {
        "loss": sum(np.logaddexp(0, -s) + sum(soft) / len(pool) for s in links) / 2,
        "test_auc": sum((s > n) + 0.5 * (s == n) for s in links for n in pool) / len(pool),
        "test_mrr": sum(1 / rank for rank in ranks),
        f"test_hits@{k}": float(sum(s > pool[k - 1] for s in links)),
    }


@pytest.mark.parametrize("ties", [False, True])
def test_links_are_ranked_among_their_negatives(*, ties: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    for _ in range(20):
        outputs = torch.randn(9, 4, generator=generator, dtype=torch.float64)
        outputs = outputs.round() if ties else outputs
        pairs = pairs_of(generator, 7, 11)
        sums = ranked(2, outputs, pairs)
        for name, value in by_hand(outputs, pairs, 2).items():
            assert sums[name] == (pytest.approx(value, rel=1e-12), 7)
        shares = [torch.cat((pairs[a:b], pairs[7:])) for a, b in ((0, 3), (3, 3), (3, 7))]
        for name, (value, count) in ranked(2, outputs, *shares).items():
            assert sums[name] == (pytest.approx(value), count), "shares of links add up"
