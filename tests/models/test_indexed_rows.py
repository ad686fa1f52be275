"""First layers read features where they lie, and compute what they compute of a copy."""

from __future__ import annotations

import pytest
import torch

from gnnhpc.batches.sampled.neighbor_sampler import NeighborSampler
from gnnhpc.core.dataset_sizes import Facts
from gnnhpc.graphs.node_features import IndexedRows, computed_dtype
from gnnhpc.kernels import sample_neighbors as sample
from gnnhpc.models.context import Context
from gnnhpc.models.convolutions import Convolutions, Gcn, Gin, GraphConv, Sage
from gnnhpc.models.gat import Gat, Gatv2
from gnnhpc.models.model import BuildOptions
from tests.tools.graphs import make_graph

pytestmark = pytest.mark.skipif(not sample.is_here(), reason="needs a C++ compiler, as g++")

MODELS: dict[str, Convolutions | Gat] = {
    "gcn": Gcn(layers=2),
    "sage": Sage(layers=2),
    "sage max": Sage(layers=2, aggregator="max"),
    "sage pool": Sage(layers=2, aggregator="pool"),
    "gin": Gin(layers=2),
    "graphconv": GraphConv(layers=2),
    "gat": Gat(heads=2, hidden=5, dropout=0.0),
    "gatv2": Gatv2(heads=2, hidden=5, dropout=0.0),
    "gat, more outputs": Gat(heads=8, hidden=8, dropout=0.0),
}
FIRST = {name: 1 if name.startswith("gat") else 0 for name in MODELS}
"""The layer that reads features: those of attention have dropout before it."""


@pytest.mark.parametrize("kept", [torch.float16, torch.float64])
@pytest.mark.parametrize("width", [3, 61])
@pytest.mark.parametrize("name", MODELS)
def test_rows_by_number_are_their_copies(name: str, width: int, kept: torch.dtype) -> None:
    """But for rounding, of features narrower and wider than the layer's output."""
    graph = make_graph(90, 900, features=width, classes=5, seed=3)
    features = graph.features.to_dense().to(kept)
    dtype = computed_dtype(features)
    chunk = NeighborSampler(graph, (3, 2), 7).chunk(torch.arange(0, 90, 4), 2)
    layer = MODELS[name].outline(_facts(width))[FIRST[name]]
    torch.manual_seed(1)
    module = MODELS[name].build(layer, BuildOptions(dtype))
    context, found = Context(0, 2, 7, chunk), []
    indexed = IndexedRows(features, chunk.nodes)
    for x in (indexed, indexed.to_dense()):
        module.zero_grad()
        out = module(x, context)
        out.square().sum().backward()
        found.append([out, *(p.grad for p in module.parameters())])
    for one, other in zip(*found, strict=True):
        near = 16 * torch.finfo(dtype).eps * float(other.detach().abs().max())
        torch.testing.assert_close(one, other, rtol=0, atol=near)


@pytest.mark.parametrize("kept", [torch.float16, torch.float64])
@pytest.mark.parametrize("name", ["gat", "gatv2"])
def test_dropout_of_rows_by_number_is_that_of_their_copies(name: str, kept: torch.dtype) -> None:
    """Read in place by the product, as its docstring says, with the mask of the whole graph."""
    graph = make_graph(90, 900, features=61, classes=5, seed=3)
    features = graph.features.to_dense().to(kept)
    dtype = computed_dtype(features)
    chunk = NeighborSampler(graph, (3, 2), 7).chunk(torch.arange(0, 90, 4), 2)
    model = {"gat": Gat, "gatv2": Gatv2}[name](heads=2, hidden=5, dropout=0.4)
    torch.manual_seed(1)
    dropout, attention = (
        model.build(layer, BuildOptions(dtype)) for layer in model.outline(_facts(61))[:2]
    )
    context, found = Context(0, 2, 7, chunk), []
    indexed = IndexedRows(features, chunk.nodes)
    handed_on = dropout(indexed, context)
    assert handed_on.x is features
    assert torch.equal(handed_on.to_dense(), dropout(indexed.to_dense(), context).to_dense())
    for x in (indexed, indexed.to_dense()):
        attention.zero_grad()
        out = attention(dropout(x, context), context)
        out.square().sum().backward()
        found.append([out, *(p.grad for p in attention.parameters())])
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def _facts(width: int) -> Facts:
    return Facts("graph", width, 5, nodes=90, edges=900)
