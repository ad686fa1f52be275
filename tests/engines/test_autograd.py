"""Backward from a loss, or from the gradient of an output: what torch's own does."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gnnhpc.engines.engine import backward


def model(x: Tensor, weight: Tensor) -> Tensor:
    return torch.tanh(x @ weight)


@pytest.mark.parametrize("is_loss", [True, False])
def test_gradients_and_hooks_are_torchs(is_loss: bool) -> None:
    found = []
    for ours in (True, False):
        torch.manual_seed(0)
        x, weight = (torch.randn(3, 3, requires_grad=True) for _ in range(2))
        result, reported = model(x, weight), list[Tensor]()
        given = None if is_loss else torch.randn(3, 3)
        if is_loss:
            result = result.square().sum()
        result.register_hook(reported.append)
        weight.register_post_accumulate_grad_hook(
            lambda p, reported=reported: reported.append(p.grad.clone())
        )
        backward(result, given) if ours else result.backward(given)
        assert x.grad is not None
        found.append([*reported, x.grad])
    assert len(found[0]) == 3
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
