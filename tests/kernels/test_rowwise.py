"""Passes over rows: dropout, ReLU, and which rows have a gradient."""

from __future__ import annotations

import math

import pytest
import torch

from gnnhpc.kernels.dispatch import Backend
from gnnhpc.kernels.dropout_mask import layer_mask, number_entries
from gnnhpc.kernels.rowwise import drop, relu_drop, rows_with_gradient
from tests.tools.backends import computed_by, device_of, needs_compiler, threads

each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
each_code = pytest.mark.parametrize("code", ["c++", "torch", "triton"])


@each_code
@pytest.mark.parametrize("width", [1, 3, 127])
@each_dtype
def test_relu_and_dropout(dtype: torch.dtype, width: int, code: Backend) -> None:
    """Numbers are whole, so that every result is exact; rows of the full graph in any order."""
    draw = torch.Generator().manual_seed(10)
    x, upstream = (
        torch.randint(-8, 9, (40, width), generator=draw).to(device_of(code), dtype)
        for _ in range(2)
    )
    rows = (torch.randint(2**40, (40,), generator=draw)).to(x.device)
    with computed_by(code):
        for mask in (None, layer_mask(1, 2, "layer", 0.5)):
            kept = 1.0 if mask is None else mask.weights(number_entries(rows, width), dtype)
            inputs = x.clone().requires_grad_()
            out = relu_drop(inputs, rows, mask)
            out.backward(upstream)
            assert torch.equal(out, x.relu() * kept)
            assert torch.equal(inputs.grad, upstream * (x > 0) * kept)
        assert mask is not None
        inputs = x.clone().requires_grad_()
        out = drop(inputs, rows, mask)
        out.backward(upstream)
        assert torch.equal(out, x * kept)
        assert torch.equal(inputs.grad, upstream * kept)


@each_code
@each_dtype
def test_what_is_not_finite_is_kept(dtype: torch.dtype, code: Backend) -> None:
    """Also where the mask drops it; below zero a ReLU makes a number of infinity, as in torch."""
    mask, device = layer_mask(0, 0, "layer0.dropout", 0.6), device_of(code)
    rows = torch.arange(400, device=device)
    for bad in (math.nan, math.inf, -math.inf):
        x = torch.full((400, 8), bad, dtype=dtype, device=device)
        with computed_by(code):
            assert not drop(x, rows, mask).isfinite().any()
            out = relu_drop(x, rows, mask)
            assert bool(out.isfinite().any()) == (bad == -math.inf)


@needs_compiler
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("width", [1, 15, 16, 33])
@each_dtype
def test_rows_are_those_with_a_number_other_than_zero(
    dtype: torch.dtype, width: int, count: int
) -> None:
    upstream = torch.zeros(40, width, dtype=dtype)
    upstream[3, 0], upstream[17, -1], upstream[39, width // 2] = 1e-30, -2.0, math.nan
    upstream[20, 0] = -0.0
    with threads(count):
        rows = rows_with_gradient(upstream)
    assert rows is not None
    assert rows.tolist() == [3, 17, 39]
    assert rows_with_gradient(upstream + 1) is None
    assert rows_with_gradient(upstream[:0]) is not None
