"""Gradients lie in memory as their parameters do, so that a fused optimizer meets them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from gnnhpc.engines.gradient_sync import dense_strides, flatten


def shapes() -> list[Tensor]:
    return [
        torch.randn(3, 4),
        torch.randn(4, 3).t(),
        torch.randn(2, 4, 3, 3).to(memory_format=torch.channels_last),
        torch.randn(3, 8)[:, ::2],
        torch.randn(3, 1).t(),
        torch.randn(()),
        torch.randn(0, 3),
    ]


def test_gradients_are_parts_of_the_buffer_in_the_order_of_their_parameters() -> None:
    parameters = [nn.Parameter(each) for each in shapes()]
    flat = flatten(parameters)
    for n, p in enumerate(parameters):
        assert p.grad is not None
        assert p.grad.stride() == dense_strides(p)
        p.grad.fill_(n + 1)
    counts = [p.numel() for p in parameters]
    assert flat.tolist() == [n + 1.0 for n, count in enumerate(counts) for _ in range(count)]


@pytest.mark.parametrize("n", range(6))
def test_what_is_dense_keeps_its_strides(n: int) -> None:
    x = shapes()[n]
    assert (dense_strides(x) == x.stride()) == (n != 3)


@pytest.mark.parametrize("n", [0, 1, 2])
def test_a_fused_step_is_one_that_is_not_fused(n: int) -> None:
    gradient = torch.randn(shapes()[n].shape)
    moved = []
    for fused in (True, False):
        parameter = nn.Parameter(torch.zeros_like(shapes()[n]))
        flatten([parameter])
        assert parameter.grad is not None
        parameter.grad.copy_(gradient)
        torch.optim.Adam([parameter], lr=0.1, fused=fused).step()
        moved.append(parameter.detach())
    torch.testing.assert_close(*moved)
