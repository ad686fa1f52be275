"""BatchNorm's two kinds of running statistics."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from gnnhpc.models.layers.batchnorm import BatchNorm, BatchNormMode


def rows(count: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 4, generator=generator, dtype=torch.float64) * 3 + 100


def plain() -> nn.BatchNorm1d:
    return nn.BatchNorm1d(4, dtype=torch.float64)


def test_micro_is_torchs_own() -> None:
    ours, theirs = BatchNorm(4, dtype=torch.float64), plain()
    for seed in range(3):
        assert torch.equal(ours(rows(8, seed)), theirs(rows(8, seed)))
    ours.end_minibatch()
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    for name, value in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], value)


@settings(max_examples=30)
@given(sizes=st.lists(st.integers(2, 9), min_size=1, max_size=6), seed=st.integers(0, 99))
def test_deferred_moves_once_by_all_rows(sizes: list[int], seed: int) -> None:
    ours, theirs = BatchNorm(4, "deferred", dtype=torch.float64), plain()
    x = rows(sum(sizes), seed)
    before = ours.running_mean.clone()
    for part in x.split(sizes):
        torch.testing.assert_close(ours(part), plain()(part), rtol=1e-10, atol=1e-10)
    assert torch.equal(ours.running_mean, before)
    ours.end_minibatch()
    theirs(x)
    torch.testing.assert_close(ours.running_mean, theirs.running_mean, rtol=1e-12, atol=0)
    torch.testing.assert_close(ours.running_var, theirs.running_var, rtol=1e-10, atol=0)
    ours.end_minibatch()
    assert int(ours.num_batches_tracked) == 1


def test_statistics_of_many_rows_do_not_cancel() -> None:
    norm = BatchNorm(1, "deferred")
    x = torch.randn(4096, 1, generator=torch.Generator().manual_seed(0)) * 0.01 + 1000
    for part in x.split(512):
        norm(part)
    norm.end_minibatch()
    exact = x.double().var(0) * 0.1 + 0.9
    torch.testing.assert_close(norm.running_var.double(), exact, rtol=1e-6, atol=0)


@pytest.mark.parametrize("mode", ["micro", "deferred"])
def test_one_row_is_refused(mode: BatchNormMode) -> None:
    with pytest.raises(ValueError, match="more than 1"):
        BatchNorm(4, mode, dtype=torch.float64)(rows(1))
