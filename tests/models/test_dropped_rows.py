"""Dropout of dense features inside the product that reads them."""

from __future__ import annotations

import pytest
import torch

from gnnhpc.kernels import gat
from gnnhpc.kernels.dropped_rows import DroppedRows
from gnnhpc.kernels.mask import layer_mask
from gnnhpc.models.gat import Gat
from gnnhpc.models.layers.linear import project
from tests.tools.graphs import make_graph, make_model

pytestmark = pytest.mark.skipif(not gat.fits(torch.zeros(1)), reason="no compiler")


def dropped(rows: int, features: int, dtype: torch.dtype) -> DroppedRows:
    x = torch.randn(rows, features, dtype=dtype, generator=torch.Generator().manual_seed(1))
    # Rows of the full graph in any order, the last a padding row.
    ids = torch.arange(rows).flip(0) * 3 - 3
    x[ids < 0] = 0
    return DroppedRows(x, ids, layer_mask(5, 2, "layer0.dropout", 0.6))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("features", [1, 15, 16, 37, 500])
@pytest.mark.parametrize("width", [1, 7, 8, 64, 75])
def test_it_is_dropout_and_then_the_product(width: int, features: int, dtype: torch.dtype) -> None:
    rows = dropped(23, features, dtype)
    draw = torch.Generator().manual_seed(2)
    weight = torch.randn(width, features, dtype=dtype, generator=draw, requires_grad=True)
    upstream = torch.randn(23, width, dtype=dtype, generator=draw)
    expected = rows.to_dense() @ weight.detach().t()
    found = project(rows, weight)
    found.backward(upstream)
    tolerance = {"rtol": 0, "atol": 64 * features**0.5 * torch.finfo(dtype).eps}
    torch.testing.assert_close(found.detach(), expected, **tolerance)
    assert weight.grad is not None
    torch.testing.assert_close(weight.grad, upstream.t() @ rows.to_dense(), **tolerance)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_so_where_it_is_dropped(value: float) -> None:
    rows = dropped(40, 12, torch.float32)
    stays = rows.mask.weights(rows.rows[:, None] * 12 + torch.arange(12), torch.float32) > 0
    row, column = (~stays).nonzero()[0].tolist()
    rows.x[row, column] = value
    found = project(rows, torch.ones(3, 12))
    assert found[row].isnan().all()
    assert found[torch.arange(40) != row].isfinite().all()


def test_only_features_are_handed_on_so() -> None:
    """Hidden dropout would take another path where a forward is computed again."""
    graph = make_graph(30, 60, sparse=False, seed=1)
    model = make_model(graph, Gat(layers=3), torch.float32)
    assert [layer.before_product for layer in model if hasattr(layer, "before_product")] == [
        True,
        False,
        False,
    ]
