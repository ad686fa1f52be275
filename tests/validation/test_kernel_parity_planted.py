"""Kernel parity finds layers that are wrong, and names the layer and what differs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gnnhpc.models.context import Context
from gnnhpc.models.layers.activations import ReluDropout
from gnnhpc.models.layers.batchnorm import BatchNorm
from gnnhpc.models.layers.convolution_layers import GcnLayer
from gnnhpc.models.vig.fused import FusedGrapher
from gnnhpc.validation.layers import compared_rows
from tests.tools.cells import GAT, VIG
from tests.validation.test_kernel_parity import checked

Change = Callable[[nn.Module, Any, Context, Any], Tensor]
"""Of a layer, its input, the context and its true forward: a wrong output."""
GCN = GAT | {"model": {"name": "gcn"}, "microbatches": 1}


def without_last_rows(layer: nn.Module, x: Any, context: Context, true: Any) -> Tensor:
    out: Tensor = true(layer, x, context)
    kept = (torch.arange(len(out)) < len(out) // 64 * 64).to(out)
    return out * kept.view(-1, *[1] * (out.ndim - 1))


def one_percent_in_the_last_row(layer: nn.Module, x: Any, context: Context, true: Any) -> Tensor:
    out: Tensor = true(layer, x, context)
    return torch.cat((out[:-1], 1.01 * out[-1:]))


def without_last_pixels(layer: nn.Module, x: Any, context: Context, true: Any) -> Tensor:
    out: Tensor = true(layer, x, context)
    return out * (torch.arange(out.shape[1]) < out.shape[1] - 4)[:, None]


def with_mask_of_next_step(layer: nn.Module, x: Any, context: Context, true: Any) -> Tensor:
    out: Tensor = true(layer, x, dataclasses.replace(context, step=context.step + 1))
    return out


def with_scaled_input_gradient(layer: nn.Module, x: Any, context: Context, true: Any) -> Tensor:
    if isinstance(x, Tensor):
        late = (torch.arange(len(x)) >= len(x) - 8)[:, None]
        x = x + torch.where(late, 0.05 * (x - x.detach()), 0.0)
    out: Tensor = true(layer, x, context)
    return out


WRONGS: list[tuple[dict[str, Any], type[nn.Module], Change, str]] = [
    (GCN, GcnLayer, without_last_rows, "output in row"),
    (GCN, GcnLayer, one_percent_in_the_last_row, "output in row 14"),
    (GCN, GcnLayer, with_scaled_input_gradient, "input gradient in row 14"),
    (GCN, ReluDropout, with_mask_of_next_step, "layer0.activation"),
    (VIG, FusedGrapher, without_last_pixels, "output in row"),
]


@pytest.mark.parametrize(
    ("raw", "kind", "change", "words"), WRONGS, ids=[each[2].__name__ for each in WRONGS]
)
def test_a_wrong_layer_is_found(
    raw: dict[str, Any],
    kind: type[nn.Module],
    change: Change,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    true = kind.forward
    monkeypatch.setattr(kind, "forward", lambda *arguments: change(*arguments, true))
    check = checked(raw)
    assert check.verdict == "invalid"
    assert words in check.detail
    assert "on rank 0" in check.detail


@pytest.mark.parametrize("change", [one_percent_in_the_last_row, without_last_rows])
def test_wrong_rows_are_found_where_few_are_compared(
    change: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compared_rows, "MOST_NUMBERS", 6_000)
    true = GcnLayer.forward
    monkeypatch.setattr(GcnLayer, "forward", lambda *arguments: change(*arguments, true))
    check = checked(GCN)
    assert check.verdict == "invalid"
    assert check.values["compared"]["layer0.convolution"] < 0.5


def test_a_biased_variance_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """With few rows, where it is another number: of 256 rows it is smaller by 0.4 %."""

    def biased(norm: BatchNorm, mean: Tensor, variance: Tensor, rows: int) -> None:
        true(norm, mean, variance * ((rows - 1) / rows), rows)

    true = BatchNorm._move
    monkeypatch.setattr(BatchNorm, "_move", biased)
    check = checked(VIG | {"batchnorm": "deferred"})
    assert check.verdict == "invalid"
    assert "running_var" in check.detail


def test_numbers_beside_zero_before_a_relu_are_no_difference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rounding decides whether they have a gradient: other numbers with other parameters."""
    true = nn.functional.relu

    def rounded(x: Tensor, inplace: bool = False) -> Tensor:
        out = true(x)
        place = int(x.detach().abs().sum().mul(1e6)) % x.numel()
        without = torch.arange(x.numel()).view_as(x) == place
        return torch.where(without, out.detach(), out)

    monkeypatch.setattr(nn.functional, "relu", rounded)
    check = checked(GAT | {"model": {"name": "gin"}, "microbatches": 1})
    assert check.verdict == "ok", check.detail
