"""Products of stored features, and of dense ones after dropout, are those of the dense rows."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gnnhpc.graphs.node_features import SparseRows
from gnnhpc.kernels.dispatch import Backend
from gnnhpc.kernels.dropout_mask import layer_mask
from gnnhpc.kernels.sparse_features import DroppedRows
from gnnhpc.models.layers.linear import linear, project
from tests.tools.backends import computed_by, device_of, needs_compiler

DTYPES = [torch.float32, torch.float64]


def stored(dense: Tensor) -> SparseRows:
    rows, columns = dense.nonzero(as_tuple=True)
    counts = torch.bincount(rows, minlength=len(dense))
    indptr = torch.cat((counts.new_zeros(1), counts.cumsum(0)))
    entries = torch.arange(len(rows), device=dense.device)
    return SparseRows(indptr, columns, dense[rows, columns], entries, dense.shape[1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("code", ["c++", "torch", "triton"])
@pytest.mark.parametrize(
    ("rows", "width", "outputs", "share"),
    [(1, 1, 1, 1.0), (12, 9, 7, 0.0), (12, 9, 70, 0.3), (5, 3, 33, 0.9), (60, 3, 150, 0.5)],
)
def test_products_of_stored_rows_are_those_of_dense_ones(
    rows: int, width: int, outputs: int, share: float, code: Backend, dtype: torch.dtype
) -> None:
    """Rows and columns without values among them."""
    draw = torch.Generator().manual_seed(rows + outputs)
    x, weight, upstream = (
        torch.randn(shape, dtype=dtype, generator=draw).to(device_of(code))
        for shape in ((rows, width), (outputs, width), (rows, outputs))
    )
    dense = x * (torch.rand((rows, width), generator=draw) < share).to(x)
    with computed_by(code):
        parameter = weight.clone().requires_grad_()
        found = project(stored(dense), parameter)
        found.backward(upstream)
    torch.testing.assert_close(found, dense @ weight.t())
    torch.testing.assert_close(parameter.grad, upstream.t() @ dense)


@needs_compiler
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("features", [1, 15, 37, 500])
@pytest.mark.parametrize("width", [1, 7, 64, 75])
def test_it_is_dropout_and_then_the_product(width: int, features: int, dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(1)
    x, weight, upstream = (
        torch.randn(shape, dtype=dtype, generator=draw)
        for shape in ((23, features), (width, features), (23, width))
    )
    # Rows of the full graph in any order, the last a padding row.
    ids = torch.arange(23).flip(0) * 3 - 3
    x[ids < 0] = 0
    rows = DroppedRows(x, ids, layer_mask(5, 2, "layer0.dropout", 0.6))
    found = project(rows, weight.requires_grad_())
    found.backward(upstream)
    near = {"rtol": 0, "atol": 64 * features**0.5 * torch.finfo(dtype).eps}
    torch.testing.assert_close(found, rows.to_dense() @ weight.t(), **near)
    torch.testing.assert_close(weight.grad, upstream.t() @ rows.to_dense(), **near)


def dropped(x: Tensor, weight: Tensor) -> Tensor:
    return project(DroppedRows(x, torch.arange(60), layer_mask(0, 0, "dropout", 0.6)), weight)


PRODUCTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "dense": linear,
    "stored": lambda x, weight: project(stored(x), weight),
    "dropped": dropped,
}


@needs_compiler
@pytest.mark.parametrize("product", PRODUCTS.values(), ids=PRODUCTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_not_finite_stays_in_rows_without_a_gradient(
    dtype: torch.dtype, product: Callable[[Tensor, Tensor], Tensor]
) -> None:
    for bad in (math.nan, math.inf, -math.inf):
        draw = torch.Generator().manual_seed(0)
        x = torch.rand(60, 20, dtype=dtype, generator=draw)
        weight = torch.rand(9, 20, dtype=dtype, generator=draw, requires_grad=True)
        x[50, 3] = bad
        product(x, weight)[:6].sum().backward()
        assert weight.grad is not None
        # 0 times it is NaN, for each of the weights that its column meets.
        assert weight.grad.isnan().any(0).sum() == 1
        assert weight.grad.isnan().any(1).all()
