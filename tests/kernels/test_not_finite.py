"""No kernel turns NaN or infinity into a number: a diverged run must not look healthy."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from gnnhpc.graphs.halo_chunks import build_chunks
from gnnhpc.graphs.node_features import feature_rows
from gnnhpc.kernels import calls
from gnnhpc.kernels import gat as kernel
from gnnhpc.kernels import gatv2 as gatv2_kernel
from gnnhpc.kernels import vig as vig_kernel
from gnnhpc.kernels.dropped_rows import DroppedRows
from gnnhpc.kernels.mask import layer_mask
from gnnhpc.models.context import Context
from gnnhpc.models.convolutions import Gcn, Gin, GraphConv, Sage
from gnnhpc.models.layers.attention_layers import AttentionSettings
from gnnhpc.models.layers.attention_layers import GatLayer as FusedAttention
from gnnhpc.models.layers.attention_layers import Gatv2Layer as FusedAttentionV2
from gnnhpc.models.layers.dropout import drop
from gnnhpc.models.layers.linear import linear, project
from gnnhpc.models.model import Model
from gnnhpc.models.vig.fused import FusedFfn, FusedGrapher
from tests.tools.graphs import forward, make_graph, make_model

DTYPES = [torch.float32, torch.float64]
BAD = [math.nan, math.inf, -math.inf]
every_value = pytest.mark.parametrize("bad", BAD, ids=["nan", "inf", "minus inf"])
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "float64"])


def finite(tensors: dict[str, Tensor]) -> dict[str, list[bool]]:
    return {name: tensor.isfinite().flatten().tolist() for name, tensor in tensors.items()}


def attend(layer: FusedAttention, x: Tensor, context: Context) -> dict[str, Tensor]:
    x = x.clone().requires_grad_()
    layer.zero_grad()
    out = layer(x, context)
    out.sum().backward()
    assert x.grad is not None
    found = {"out": out.detach(), "x": x.grad}
    return found | {name: p.grad.clone() for name, p in layer.named_parameters()}


@pytest.mark.skipif(not kernel.fits(torch.empty(0)), reason="no compiled kernel")
@pytest.mark.parametrize("heads", [1, 4, 8])
@pytest.mark.parametrize("dropout", [0.0, 0.6])
@every_value
@every_dtype
def test_attention_spreads_it_as_plain_torch_does(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, bad: float, dropout: float, heads: int
) -> None:
    graph = make_graph(30, 60, seed=3)
    (chunk,) = build_chunks(graph, 1, "halo", 1).chunks
    context = Context(graph=chunk)
    torch.manual_seed(0)
    layer = FusedAttention(AttentionSettings("a", 0, 5, 3, heads, False, dropout)).to(dtype)
    x = torch.rand(30, 5, dtype=dtype)
    x[7, 2] = bad
    ours = attend(layer, x, context)
    monkeypatch.setattr(kernel, "fits", lambda _: False)
    plain = attend(layer, x, context)
    assert not ours["out"].isfinite().all()
    assert finite(ours)["out"] == finite(plain)["out"]
    for name, gradient in plain.items():
        # Where plain torch has no number neither have we; we may have fewer.
        ill = ~gradient.isfinite()
        assert not ours[name][ill].isfinite().any(), name


FEW = 6
"""Rows with a gradient, of 60: backward could do with these alone."""


def stored_product(x: Tensor, weight: Tensor) -> Tensor:
    graph = make_graph(60, 60, features=x.shape[1], seed=3)
    graph.features.values().fill_(0.5)
    rows = feature_rows(graph.features, torch.arange(60), x.dtype)
    bad = (~x.isfinite()).any(1).nonzero().item()
    first = rows.indptr[bad]
    assert first < rows.indptr[bad + 1]
    rows.values[first] = x[bad].sum()
    return project(rows, weight)


def dropped_product(x: Tensor, weight: Tensor) -> Tensor:
    return project(DroppedRows(x, torch.arange(60), layer_mask(0, 0, "dropout", 0.6)), weight)


PRODUCTS = {"dense": linear, "stored": stored_product, "dropped": dropped_product}


@pytest.mark.skipif(not kernel.fits(torch.empty(0)), reason="no compiled kernel")
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


@pytest.mark.skipif(not kernel.fits(torch.empty(0)), reason="no compiled kernel")
def test_it_is_looked_for_where_a_backward_comes_alone() -> None:
    """With a bias or without one: which of a layer's two forms computes may be another in each
    mini-batch, and as many calls are made."""
    x, weight = torch.rand(6, 4), nn.Parameter(torch.rand(3, 4))
    for bias in (None, nn.Parameter(torch.rand(3))):
        with torch.no_grad():
            before = calls.counted()
            linear(x, weight, bias)
            assert calls.counted() == before
        linear(x, weight, bias)
        assert sum((calls.counted() - before).values()) == 1


def of_few(layer: nn.Module, x: Tensor, context: Context) -> dict[str, list[bool]]:
    """Of the gradients of parameters, which numbers are finite."""
    layer.zero_grad()
    out = layer(x, context)
    assert out[:FEW].isfinite().all()
    assert not out.isfinite().all()
    out[:FEW].sum().backward()
    return finite({name: p.grad for name, p in layer.named_parameters() if p.grad is not None})


@pytest.mark.skipif(not kernel.fits(torch.empty(0)), reason="no compiled kernel")
@pytest.mark.parametrize("form", [FusedAttention, FusedAttentionV2])
@pytest.mark.parametrize("heads", [1, 8])
@pytest.mark.parametrize("dropout", [0.0, 0.6])
@every_value
@every_dtype
def test_attention_keeps_it_at_nodes_without_a_gradient(
    monkeypatch: pytest.MonkeyPatch,
    dtype: torch.dtype,
    bad: float,
    dropout: float,
    heads: int,
    form: Callable[[AttentionSettings], FusedAttention | FusedAttentionV2],
) -> None:
    """As an overflow of the scores leaves it: features that are finite give scores that are not."""
    (chunk,) = build_chunks(make_graph(60, 60, seed=3), 1, "halo", 1).chunks
    context = Context(graph=chunk)
    torch.manual_seed(0)
    layer = form(AttentionSettings("a", 0, 5, 3, heads, False, dropout)).to(dtype)
    source, target = chunk.blocks[0].source, chunk.blocks[0].target
    of_labels = set(source[target < FEW].tolist())
    x = torch.rand(60, 5, dtype=dtype)
    x[next(node for node in range(60) if node not in of_labels), 2] = bad
    ours = of_few(layer, x, context)
    for each in (kernel, gatv2_kernel):
        monkeypatch.setattr(each, "fits", lambda _: False)
    monkeypatch.setattr("gnnhpc.models.layers.linear.aggregate.fits", lambda _: False)
    plain = of_few(layer, x, context)
    assert ours.keys() == plain.keys()
    for name, wanted in plain.items():
        assert not any(o and not w for o, w in zip(ours[name], wanted, strict=True)), name


MODELS: dict[str, Model] = {
    "gcn": Gcn(layers=3, hidden=20, dropout=0.0),
    "sage": Sage(layers=3, hidden=20, dropout=0.0),
    "sage-pool": Sage(layers=3, hidden=20, aggregator="pool", dropout=0.0),
    "gin": Gin(layers=3, hidden=20, dropout=0.0),
    "graphconv": GraphConv(layers=3, hidden=20, dropout=0.0),
}


@pytest.mark.skipif(not kernel.fits(torch.empty(0)), reason="no compiled kernel")
@pytest.mark.parametrize("sparse", [True, False], ids=["sparse", "dense"])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_keeps_an_overflow_that_its_outputs_do_not_show(name: str, sparse: bool) -> None:
    """One layer overflows at a node far from all labels, the next one's ReLU makes it 0."""
    graph = make_graph(2000, 1500, seed=3, sparse=sparse)
    stored = graph.features.crow_indices() if sparse else torch.arange(2001) * 12
    values = (graph.features.values() if sparse else graph.features).view(-1)
    linked = graph.edges[1].unique()
    far = next(n for n in linked.flip(0).tolist() if stored[n] < stored[n + 1])
    values[stored[far] : stored[far + 1]] = torch.finfo(torch.float32).max
    (chunk,) = build_chunks(graph, 1, "halo", 3).chunks
    found = {}
    for form in ("fused", "pyg"):
        config = MODELS[name].model_copy(update={"implementation": form})
        model = make_model(graph, config, torch.float32)
        first, second, _ = (layer for layer in model if list(layer.parameters()))
        with torch.no_grad():
            for layer, value in ((first, 2.0), (second, -1e-4)):
                for parameter in layer.parameters():
                    parameter.fill_(value if parameter.ndim == 2 else 1.0)
        out = forward(model, Context(graph=chunk))
        assert out.isfinite().all()
        out[:FEW, 0].sum().backward()
        found[form] = finite({name: p.grad for name, p in model.named_parameters()})  # type: ignore[misc]
    assert not all(map(all, found["pyg"].values()))
    assert found["fused"] == found["pyg"]


@every_value
@every_dtype
def test_dropout_drops_no_trace_of_it(dtype: torch.dtype, bad: float) -> None:
    for width in (1, 8):
        x = torch.full((400, width), bad, dtype=dtype)
        mask = layer_mask(0, 0, "layer0.dropout", 0.6)
        assert not drop(x, torch.arange(400), mask).isfinite().any()


@pytest.mark.skipif(not vig_kernel.available(), reason="no compiled kernel")
@pytest.mark.parametrize("training", [True, False])
@every_value
def test_vig_spreads_it(bad: float, training: bool) -> None:
    layers: list[nn.Module] = [
        FusedGrapher((4, 4), 16, batchnorm="micro", dtype=torch.float32),
        FusedFfn(16, batchnorm="micro", dtype=torch.float32),
    ]
    for layer in layers:
        layer.train(training)
        x = torch.rand(6, 16, 3)
        x[2, 5, 1] = bad
        x.requires_grad_()
        out = layer(x, Context())
        assert not out[2, 5].isfinite().all()
        out.sum().backward()
        gradients = [p.grad for p in layer.parameters() if p.grad is not None]
        assert not all(gradient.isfinite().all() for gradient in gradients)
