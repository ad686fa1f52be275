"""Rows of zeros are left out of what goes backward; a number that is none is no zero."""

from __future__ import annotations

import math

import pytest
import torch

from gnnhpc.kernels import aggregate
from gnnhpc.models.layers.linear import linear

pytestmark = pytest.mark.skipif(
    not aggregate.fits(torch.zeros(1)), reason="needs a C++ compiler, as g++"
)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("width", [1, 15, 16, 33])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_are_those_with_a_number_other_than_zero(
    dtype: torch.dtype, width: int, threads: int
) -> None:
    upstream = torch.zeros(40, width, dtype=dtype)
    upstream[3, 0], upstream[17, -1], upstream[39, width // 2] = 1e-30, -2.0, math.nan
    upstream[20, 0] = -0.0
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        rows = aggregate.rows_with_gradient(upstream)
    finally:
        torch.set_num_threads(before)
    assert rows is not None
    assert rows.tolist() == [3, 17, 39]
    assert aggregate.rows_with_gradient(upstream + 1) is None
    assert aggregate.rows_with_gradient(upstream[:0]) is not None


def test_of_more_rows_than_a_quarter_all_are_taken() -> None:
    upstream = torch.zeros(40, 3)
    upstream[::4, 1] = 1.0
    rows = aggregate.rows_with_gradient(upstream)
    assert rows is not None
    assert rows.tolist() == list(range(0, 40, 4))
    upstream[1, 0] = 1.0
    assert aggregate.rows_with_gradient(upstream) is None


@pytest.mark.parametrize("live", [0, 3, 40])
@pytest.mark.parametrize("needs_input", [True, False])
def test_a_product_has_the_gradients_of_torchs(live: int, needs_input: bool) -> None:
    draw = torch.Generator().manual_seed(live)

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    x, weight, bias, upstream = numbers(40, 6), numbers(5, 6), numbers(5), numbers(40, 5)
    upstream[live:] = 0
    found, expected = [], []
    for product, gradients in ((linear, found), (torch.nn.functional.linear, expected)):
        given = [x.clone().requires_grad_(needs_input)]
        given += [weight.clone().requires_grad_(), bias.clone().requires_grad_()]
        product(*given).backward(upstream)
        gradients += [each.grad for each in given]
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("shape", [(7,), (2, 5, 7)])
def test_only_rows_of_features_are_taken(shape: tuple[int, ...]) -> None:
    with pytest.raises(AssertionError, match="rows of features"):
        linear(torch.ones(shape), torch.ones(3, 7))


def test_a_gradient_that_is_no_number_reaches_all_it_should() -> None:
    x, weight = torch.ones(40, 2, requires_grad=True), torch.ones(3, 2, requires_grad=True)
    upstream = torch.zeros(40, 3)
    upstream[7, 1] = math.nan
    linear(x, weight).backward(upstream)
    assert x.grad is not None
    assert weight.grad is not None
    assert x.grad.isnan().any(1).nonzero().tolist() == [[7]]
    assert weight.grad.isnan().all(1).tolist() == [False, True, False]
