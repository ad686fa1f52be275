"""An evaluation's outputs again: the same sums in another order, or something random."""

from __future__ import annotations

import torch
from torch.nn import functional

from gnnhpc.check.watches.evaluation_watch import _near, _same


def test_another_order_of_sums_is_near_and_dropout_is_not() -> None:
    draw = torch.Generator().manual_seed(0)
    x, weight = torch.randn(200, 500, generator=draw), torch.randn(500, 16, generator=draw)
    order = torch.randperm(500, generator=draw)
    first, again = x @ weight, x[:, order] @ weight[order]
    assert not torch.equal(first, again)
    assert _near(again, first)
    assert not _near(functional.dropout(x, 0.01) @ weight, first)


def test_on_a_cpu_outputs_are_the_same_to_the_bit() -> None:
    first = torch.ones(8)
    assert _same(first, first.clone())
    assert not _same(first, first * (1 + 1e-6))
