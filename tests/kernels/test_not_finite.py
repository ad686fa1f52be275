"""No kernel turns NaN or infinity into a number: a diverged run must not look healthy."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from gnnhpc.graphs.halo_chunks import build_chunks
from gnnhpc.graphs.node_features import feature_rows
from gnnhpc.kernels.dropout_mask import layer_mask
from gnnhpc.kernels.rowwise import drop, relu_drop, relu_of_product
from gnnhpc.kernels.sparse_features import DroppedRows
from gnnhpc.models.context import Context
from gnnhpc.models.layers.attention_layers import AttentionSettings, GatLayer, Gatv2Layer
from gnnhpc.models.layers.linear import linear, project
from tests.tools.backends import computed_by, needs_compiler
from tests.tools.graphs import make_graph

every_value = pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf], ids=str)
every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
FEW = 6
"""Rows with a gradient, of 60: backward could do with these alone."""


def stored_product(x: Tensor, weight: Tensor) -> Tensor:
    graph = make_graph(60, 60, features=x.shape[1], seed=3)
    graph.features.values().fill_(0.5)
    rows = feature_rows(graph.features, torch.arange(60), x.dtype)
    bad = (~x.isfinite()).any(1).nonzero().item()
    rows.values[rows.indptr[bad]] = x[bad].sum()
    return project(rows, weight)


def dropped_product(x: Tensor, weight: Tensor) -> Tensor:
    return project(DroppedRows(x, torch.arange(60), layer_mask(0, 0, "dropout", 0.6)), weight)


PRODUCTS = {"dense": linear, "stored": stored_product, "dropped": dropped_product}


@needs_compiler
@pytest.mark.parametrize("product", PRODUCTS.values(), ids=PRODUCTS)
@every_value
@every_dtype
def test_a_product_keeps_it_in_rows_without_a_gradient(
    dtype: torch.dtype, bad: float, product: Callable[[Tensor, Tensor], Tensor]
) -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.rand(60, 20, dtype=dtype, generator=draw)
    weight = torch.rand(9, 20, dtype=dtype, generator=draw, requires_grad=True)
    x[50, 3] = bad
    product(x, weight)[:FEW].sum().backward()
    assert weight.grad is not None
    # 0 times it is NaN, for each of the weights that its column meets.
    assert weight.grad.isnan().any(0).sum() == 1
    assert weight.grad.isnan().any(1).all()


def attended(layer: nn.Module, x: Tensor, context: Context, few: bool) -> dict[str, Tensor]:
    """Output and gradients, of a loss of all rows or of a few, whose outputs are finite."""
    x = x.clone().requires_grad_()
    layer.zero_grad()
    out = layer(x, context)
    assert not out.isfinite().all()
    assert out[:FEW].isfinite().all() or not few
    out[: FEW if few else None].sum().backward()
    assert x.grad is not None
    return {"out": out.detach(), "x": x.grad} | {
        name: p.grad.clone() for name, p in layer.named_parameters() if p.grad is not None
    }


@needs_compiler
@pytest.mark.parametrize("few", [False, True], ids=["all rows", "few rows"])
@pytest.mark.parametrize("form", [GatLayer, Gatv2Layer])
@pytest.mark.parametrize(("heads", "dropout"), [(1, 0.6), (8, 0.0)])
@every_value
def test_attention_spreads_it_as_in_plain_torch(
    bad: float, heads: int, dropout: float, form: Callable[..., nn.Module], few: bool
) -> None:
    (chunk,) = build_chunks(make_graph(60, 60, seed=3), 1, "halo", 1).chunks
    context = Context(graph=chunk)
    torch.manual_seed(0)
    layer = form(AttentionSettings("a", 0, 5, 3, heads, False, dropout))
    source, target = chunk.blocks[0].source, chunk.blocks[0].target
    x = torch.rand(60, 5)
    near = set(source[target < FEW].tolist())
    x[next(node for node in range(60) if node not in near), 2] = bad
    ours = attended(layer, x, context, few)
    with computed_by("torch"):
        plain = attended(layer, x, context, few)
    assert torch.equal(ours["out"].isfinite(), plain["out"].isfinite())
    for name, gradient in plain.items():
        # Where plain torch has no number neither have we; we may have fewer.
        assert not ours[name][~gradient.isfinite()].isfinite().any(), name


@every_value
@every_dtype
def test_dropout_and_relu_keep_it(dtype: torch.dtype, bad: float) -> None:
    """Also where the mask drops it; below zero a ReLU makes a number of infinity, as in torch."""
    mask, rows = layer_mask(0, 0, "layer0.dropout", 0.6), torch.arange(400)
    for width in (1, 8):
        x = torch.full((400, width), bad, dtype=dtype)
        assert not drop(x, rows, mask).isfinite().any()
        active = relu_drop(x, rows, mask), relu_of_product(x.clone(), torch.ones(width).to(dtype))
        for out in active:
            assert bool(out.isfinite().any()) == (bad == -math.inf)
