"""What rounding allows a loss is what torch's own sums need, and hardly more."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from gnnhpc.check.watches.plain_pairs import plain_loss
from gnnhpc.check.watches.plain_tally import plain_tally
from gnnhpc.check.watches.sum_rounding import most_added

DTYPES = (torch.float32, torch.float64)


@pytest.mark.parametrize("rows", [1, 5, 50, 3_000, 60_000, 1_000_000])
@pytest.mark.parametrize("size", [1e-3, 1.0, 40.0, 1e4])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_loss_of_classes(rows: int, size: float, dtype: torch.dtype) -> None:
    torch.manual_seed(rows)
    outputs, labels = torch.randn(rows, 4, dtype=dtype) * size, torch.randint(0, 4, (rows,))
    labels[1::7] = -1
    found = functional.cross_entropy(outputs, labels, reduction="sum", ignore_index=-1)
    tally = plain_tally([outputs], [labels.numpy()], "logits")
    _is_held(found, tally.loss, tally.loss_error, rows * (1 + float(outputs.abs().max())))


@pytest.mark.parametrize("rows", [2, 50, 3_000, 1_000_000])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_loss_of_links(rows: int, dtype: torch.dtype) -> None:
    torch.manual_seed(rows)
    outputs = torch.randn(100, 8, dtype=dtype)
    pairs = torch.stack([*torch.randint(0, 100, (2, rows)), torch.arange(rows) % 2], 1)
    one, other, labels = outputs[pairs[:, 0]], outputs[pairs[:, 1]], pairs[:, 2].to(dtype)
    found = functional.binary_cross_entropy_with_logits(
        (one * other).sum(1), labels, reduction="sum"
    )
    tally = plain_loss([outputs], [pairs.numpy()], "embeddings")
    _is_held(found, tally.value, tally.error, rows * (1 + float((one * other).sum(1).abs().max())))


def _is_held(found: Tensor, value: float, error: float, size: float) -> None:
    """`size` is that of the numbers that each loss is a difference of."""
    assert abs(float(found) - value) <= error
    assert error < torch.finfo(found.dtype).eps * (400 * value + 40 * size)


def test_numbers_that_are_alike_lose_most() -> None:
    """Each is rounded the same way."""
    for rows in (1_000, 100_000, 10_000_000):
        outputs = torch.full((rows, 1), -0.1)
        found = functional.nll_loss(outputs, torch.zeros(rows, dtype=torch.int64), reduction="sum")
        exact = float(outputs[0].double()) * -rows
        assert abs(float(found) - exact) <= most_added(rows, on_gpu=False) * 2**-23 * exact


def test_no_more_than_all_are_added() -> None:
    rows = np.arange(300)
    assert all(most_added(n, on_gpu=False) <= n and most_added(n, on_gpu=True) <= n for n in rows)
