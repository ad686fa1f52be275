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
from gnnhpc.models.vig.fused import FusedFfn, FusedGrapher
from gnnhpc.validation.layers import compared_rows
from tests.tools.cells import GAT, VIG
from tests.validation.test_kernel_parity import checked

Forward = Callable[[nn.Module, Any, Context], Tensor]
Wrong = Callable[[Forward], Forward]
GCN = GAT | {"model": {"name": "gcn"}, "microbatches": 1}


def on_output(change: Callable[[Tensor], Tensor]) -> Wrong:
    """A layer whose output is changed."""

    def wrong(true: Forward) -> Forward:
        return lambda layer, x, context: change(true(layer, x, context))

    return wrong


def without_last_block(out: Tensor) -> Tensor:
    kept = (torch.arange(len(out)) < len(out) // 64 * 64).to(out)
    return out * kept.view(-1, *[1] * (out.ndim - 1))


def one_percent_in_late_rows(out: Tensor) -> Tensor:
    factor = torch.ones(len(out), 1)
    factor[-5:-2] = 1.01
    return out * factor


def without_last_pixels(out: Tensor) -> Tensor:
    return out * (torch.arange(out.shape[1]) < out.shape[1] - 4)[:, None]


def with_scaled_gradient(true: Forward) -> Forward:
    def wrong(layer: nn.Module, x: Any, context: Context) -> Tensor:
        out = true(layer, x, context)
        if layer.training:
            # The two add up to the output, and their gradients to 1.05 times its gradient.
            bias = layer.bias
            assert isinstance(bias, Tensor)
            out = out + 0.05 * (bias - bias.detach())
        return out

    return wrong


def with_mask_of_next_step(true: Forward) -> Forward:
    return lambda layer, x, context: true(
        layer, x, dataclasses.replace(context, step=context.step + 1)
    )


def without_running_statistics(true: Forward) -> Forward:
    def wrong(layer: nn.Module, x: Any, context: Context) -> Tensor:
        kept = {name: buffer.clone() for name, buffer in layer.named_buffers()}
        out = true(layer, x, context)
        for name, buffer in layer.named_buffers():
            if name == "norm1.running_var":
                buffer.copy_(kept[name])
        return out

    return wrong


WRONGS: list[tuple[str, dict[str, Any], type[nn.Module], Wrong, str]] = [
    ("last-block", GCN, GcnLayer, on_output(without_last_block), "output in row"),
    ("race", GCN, GcnLayer, on_output(one_percent_in_late_rows), "output in row 14"),
    ("gradient", GCN, GcnLayer, with_scaled_gradient, "convolution.bias by"),
    ("dropout-mask", GCN, ReluDropout, with_mask_of_next_step, "layer0.activation"),
    ("image-block", VIG, FusedGrapher, on_output(without_last_pixels), "output in row"),
    ("statistics", VIG, FusedFfn, without_running_statistics, "norm1.running_var"),
]


@pytest.mark.parametrize(
    ("raw", "kind", "wrong", "words"), [each[1:] for each in WRONGS], ids=[e[0] for e in WRONGS]
)
def test_a_wrong_layer_is_found(
    raw: dict[str, Any],
    kind: type[nn.Module],
    wrong: Wrong,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kind, "forward", wrong(kind.forward))
    check = checked(raw)
    assert check.verdict == "invalid"
    assert words in check.detail
    assert "on rank 0" in check.detail


def one_percent_in_the_last_row(out: Tensor) -> Tensor:
    return torch.cat((out[:-1], 1.01 * out[-1:]))


@pytest.mark.parametrize("change", [one_percent_in_the_last_row, without_last_block])
def test_wrong_rows_are_found_where_few_are_compared(
    change: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compared_rows, "MOST_NUMBERS", 6_000)
    true: Any = GcnLayer.forward
    monkeypatch.setattr(GcnLayer, "forward", on_output(change)(true))
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
