"""Scores, losses and ranks of links, against a count of every pair by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch
from torch import Tensor

from gnnhpc.batches.batch import Batch
from gnnhpc.tasks.links import LinkPrediction
from gnnhpc.tasks.task import Tally

NAMES = ("loss", "test_auc", "test_mrr", "test_hits@2")


def pairs_of(draw: torch.Generator, links: int, negatives: int) -> Tensor:
    rows = torch.randint(9, (links + negatives, 2), generator=draw)
    return torch.cat((rows, (torch.arange(links + negatives) < links).long()[:, None]), 1)


def judged(task: LinkPrediction, outputs: Tensor, *pairs: Tensor) -> Tally:
    parts = [SimpleNamespace(targets={"val": each, "test": each}) for each in pairs]
    batch = cast("Batch", SimpleNamespace(microbatches=parts))
    return task.tally("test", [outputs] * len(parts), batch)


def by_hand(outputs: Tensor, pairs: Tensor, k: int) -> dict[str, float]:
    score = [float(outputs[u] @ outputs[v]) for u, v, _ in pairs.tolist()]
    links = [s for s, (_, _, is_link) in zip(score, pairs.tolist(), strict=True) if is_link]
    pool = sorted((s for s, p in zip(score, pairs.tolist(), strict=True) if not p[2]), reverse=True)
    auc = sum((s > n) + 0.5 * (s == n) for s in links for n in pool) / len(pool)
    ranks = [1 + sum((n > s) + 0.5 * (n == s) for n in pool) for s in links]
    soft = [float(np.logaddexp(0, n)) for n in pool]
    return {
        "loss": sum(np.logaddexp(0, -s) + sum(soft) / len(pool) for s in links) / 2,
        "test_auc": auc,
        "test_mrr": sum(1 / rank for rank in ranks),
        "test_hits@2": float(sum(s > pool[k - 1] for s in links)),
    }


@pytest.mark.parametrize("ties", [False, True])
def test_metrics_are_those_of_every_pair_counted(*, ties: bool) -> None:
    draw = torch.Generator().manual_seed(3)
    task = LinkPrediction(hits=2)
    for _ in range(20):
        outputs = torch.randn(9, 4, generator=draw, dtype=torch.float64)
        outputs = outputs.round() if ties else outputs
        pairs = pairs_of(draw, 7, 11)
        found, wanted = judged(task, outputs, pairs), by_hand(outputs, pairs, 2)
        for name in NAMES:
            assert found[name] == (pytest.approx(wanted[name], rel=1e-12), 7)


def test_shares_of_links_before_one_pool_add_up() -> None:
    draw = torch.Generator().manual_seed(4)
    outputs, pairs = torch.randn(9, 4, generator=draw), pairs_of(draw, 10, 12)
    parts = [torch.cat((pairs[a:b], pairs[10:])) for a, b in ((0, 3), (3, 3), (3, 10))]
    task = LinkPrediction(hits=3)
    whole, cut = judged(task, outputs, pairs), judged(task, outputs, *parts)
    for name, (value, count) in whole.items():
        assert cut[name] == (pytest.approx(value, rel=1e-6), count)
