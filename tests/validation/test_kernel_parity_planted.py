"""Kernel parity finds layers that are wrong, and names the layer and what differs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gnnhpc.models.layers.batchnorm import BatchNorm
from gnnhpc.models.layers.convolution_layers import GcnLayer
from gnnhpc.models.layers.dropout import ReluDropout
from gnnhpc.models.model import Context
from gnnhpc.records.schema import Check
from gnnhpc.validation.layers import compared_rows
from tests.tools.cells import GAT, VIG
from tests.validation.test_kernel_parity import checked

Change = Callable[[nn.Module, Any, Context, Any], Tensor]
"""Of a layer, its input, the context and its true forward: a wrong output."""
GCN = GAT | {"model": {"name": "gcn"}, "microbatches": 1}


def one_percent_in_the_last_row(layer: nn.Module, x: Any, context: Context, true: Any) -> Tensor:
    """As a kernel in single precision may have it."""
    out: Tensor = true(layer, x, context)
    return torch.cat((out[:-1], 1.01 * out[-1:])) if out.dtype == torch.float32 else out


def with_mask_of_next_step(layer: nn.Module, x: Any, context: Context, true: Any) -> Tensor:
    out: Tensor = true(layer, x, dataclasses.replace(context, step=context.step + 1))
    return out


def with_change(kind: type[nn.Module], change: Change, monkeypatch: pytest.MonkeyPatch) -> Check:
    """The verdict about a GCN where one kind of layer is wrong."""
    true = kind.forward
    monkeypatch.setattr(kind, "forward", lambda *arguments: change(*arguments, true))
    return checked(GCN)


def test_a_mask_of_another_step_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    check = with_change(ReluDropout, with_mask_of_next_step, monkeypatch)
    assert check.verdict == "invalid"
    assert "layer0.activation" in check.detail


def test_a_wrong_row_is_found_where_few_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compared_rows, "MOST_NUMBERS", 6_000)
    check = with_change(GcnLayer, one_percent_in_the_last_row, monkeypatch)
    assert check.verdict == "invalid"
    assert "output in row 149" in check.detail
    assert "on rank 0" in check.detail
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
