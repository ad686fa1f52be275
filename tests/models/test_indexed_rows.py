"""First layers read features where they lie, and compute what they compute of a copy."""

from __future__ import annotations

import pytest
import torch

from gnnhpc.batches.graph_sampler import GraphSampler
from gnnhpc.core.facts import Facts
from gnnhpc.graphs.indexed_rows import IndexedRows
from gnnhpc.kernels import sample
from gnnhpc.models.context import Context
from gnnhpc.models.convolutions.model import Convolutions, Gcn, Gin, GraphConv, Sage
from gnnhpc.models.protocol import BuildOptions
from tests.tools.graphs import make_graph

pytestmark = pytest.mark.skipif(not sample.is_here(), reason="needs a C++ compiler, as g++")

MODELS: dict[str, Convolutions] = {
    "gcn": Gcn(layers=2),
    "sage": Sage(layers=2),
    "sage max": Sage(layers=2, aggregator="max"),
    "sage pool": Sage(layers=2, aggregator="pool"),
    "gin": Gin(layers=2),
    "graphconv": GraphConv(layers=2),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [3, 61, 200])
@pytest.mark.parametrize("name", MODELS)
def test_rows_by_number_are_their_copies(name: str, width: int, dtype: torch.dtype) -> None:
    """Bit for bit, of features narrower and wider than the layer's output."""
    graph = make_graph(90, 900, features=width, classes=5, seed=3)
    features = graph.features.to_dense().to(dtype)
    chunk = GraphSampler(graph, (3, 2), 7).chunk(torch.arange(0, 90, 4), 2)
    layer = MODELS[name].outline(_facts(width))[0]
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
        assert torch.equal(one, other)


def _facts(width: int) -> Facts:
    return Facts("graph", width, 5, nodes=90, edges=900)
