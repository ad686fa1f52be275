"""The twin in single precision is as careless as sound code may be: it says what rounding is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from gnnhpc.check.twin.layer import EPS, batch_norm, repeat_rows
from gnnhpc.check.twin.scene import RunningStatistics, Scene

ATTEMPTS = 51


def of_torch(x: Tensor, p: dict[str, Tensor]) -> Tensor:
    return F.batch_norm(x, None, None, p["n.weight"], p["n.bias"], training=True, eps=EPS)


def of_twin(x: Tensor, p: dict[str, Tensor]) -> Tensor:
    channels = x.shape[1]
    statistics = RunningStatistics(torch.zeros(channels), torch.ones(channels))
    scene = Scene(step=0, seed=0, training=True, deferred=False, statistics={"n": statistics})
    return batch_norm(x, p, "n", "n", scene)


def left_over(norm: Callable[[Tensor, dict[str, Tensor]], Tensor], rows: int) -> float:
    """The median size of what one gradient for all rows leaves behind a BatchNorm: nothing but
    rounding, relative to the gradient that arrives and to the deviation it is divided by.
    """
    draws = torch.Generator().manual_seed(5)
    sizes = []
    for _ in range(ATTEMPTS):
        x = 0.3 * torch.randn(rows, 3, generator=draws) + torch.randn(3, generator=draws)
        arriving = torch.randn(3, generator=draws).expand(rows, 3).contiguous()
        x.requires_grad_()
        parameters = {"n.weight": torch.ones(3), "n.bias": torch.zeros(3)}
        norm(x, parameters).backward(arriving)
        assert x.grad is not None
        sizes.append(float(x.grad.norm() * x.detach().std() / arriving.norm()))
    return sorted(sizes)[ATTEMPTS // 2]


@pytest.mark.parametrize("rows", [169, 1024, 5120])
def test_it_sums_gradients_as_carelessly_as_torchs_batch_norm(rows: int) -> None:
    """A sum of n equal numbers, one after another, is off by up to n roundings; by halves log n."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert left_over(of_torch, rows) <= 3 * left_over(of_twin, rows)
    finally:
        torch.set_num_threads(threads)


def test_rows_that_are_repeated_give_the_sum_of_their_gradients() -> None:
    row = torch.tensor([1.0, -2.0], requires_grad=True)
    weights = torch.arange(10.0).reshape(5, 2)
    (repeat_rows(row, 5) * weights).sum().backward()
    assert row.grad is not None
    assert torch.equal(row.grad, weights.sum(0))
