"""Dropout masks are the same however a graph is cut."""

from __future__ import annotations

import pytest
import torch

from gnnhpc.graphs.halo_chunks import ChunkMode, build_chunks
from gnnhpc.graphs.node_features import feature_rows
from gnnhpc.models.layers.dropout import Dropout
from gnnhpc.models.model import Context
from tests.tools.graphs import make_graph

DTYPE = torch.float32


@pytest.mark.parametrize(("mode", "sparse"), [("clustered", True), ("halo", True), ("halo", False)])
def test_chunks_drop_what_the_full_graph_drops(mode: ChunkMode, sparse: bool) -> None:
    graph = make_graph(50, 80, sparse=sparse, seed=3)
    first, later = Dropout("layer0.dropout", 0.6), Dropout("layer1.dropout", 0.6)
    activation = torch.rand(50, 16)
    (whole,) = build_chunks(graph, 1, mode, 2).chunks
    context = Context(graph=whole, seed=5, step=7)
    features = first(feature_rows(graph.features, whole.nodes, DTYPE), context).to_dense()
    dropped = later(activation, context)
    kept = features[graph.features.to_dense() != 0] != 0
    assert 0.2 < kept.double().mean() < 0.6
    for chunk in build_chunks(graph, 4, mode, 2).chunks:
        context = Context(graph=chunk, seed=5, step=7)
        real = chunk.nodes >= 0
        rows = feature_rows(graph.features, chunk.nodes, DTYPE)
        assert torch.equal(first(rows, context).to_dense()[real], features[chunk.nodes[real]])
        nodes = chunk.nodes[: chunk.rows[1]]
        real = nodes >= 0
        found = later(activation[nodes.clamp(min=0)], context)
        assert torch.equal(found[real], dropped[nodes[real]])


@pytest.mark.parametrize(("p", "training"), [(0.6, False), (0.0, True)])
def test_evaluation_and_p_0_change_nothing(p: float, training: bool) -> None:
    graph = make_graph(20, 30, seed=0)
    (chunk,) = build_chunks(graph, 1, "halo", 2).chunks
    for x in (feature_rows(graph.features, chunk.nodes, DTYPE), torch.rand(20, 16)):
        assert Dropout("layer0.dropout", p).train(training)(x, Context(graph=chunk)) is x
