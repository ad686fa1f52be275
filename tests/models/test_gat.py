"""The model by layers: parameters, PyG's function, and halo chunks that lose nothing."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from torch.nn import functional
from torch_geometric.nn import GATConv

from gnnhpc.graphs.halo_chunks import build_chunks
from gnnhpc.models.context import Context
from gnnhpc.models.gat import Gat
from tests.tools.graphs import (
    forward,
    gradients,
    make_graph,
    make_model,
    relative_error,
    worst_layer_error,
)

Implementation = Literal["fused", "pyg"]
IMPLEMENTATIONS: tuple[Implementation, ...] = ("fused", "pyg")
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-10}


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_the_model_is_pygs(implementation: Implementation) -> None:
    graph = make_graph(50, 120, seed=1)
    (chunk,) = build_chunks(graph, 1, "contiguous", 2).chunks
    model = make_model(graph, Gat(implementation=implementation)).eval()
    first = GATConv(12, 8, heads=8, dropout=0.6).double().eval()
    second = GATConv(64, 3, heads=8, concat=False, dropout=0.6).double().eval()
    first.load_state_dict(model[1].state_dict())
    second.load_state_dict(model[4].state_dict())
    # PyG drops the self-loops it is given and adds one a node.
    loops = torch.tensor([[3, 4], [3, 4]])
    edges = torch.cat((graph.edges, loops), dim=1)
    x = functional.elu(first(graph.features.to_dense().double(), edges))
    expected = functional.log_softmax(second(x, edges), dim=-1)
    assert relative_error(forward(model, Context(graph=chunk)), expected) < 1e-12


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("dropout", [0.0, 0.6])
@pytest.mark.parametrize("layers", [2, 4])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_halo_chunks_have_the_full_graphs_gradient(
    implementation: Implementation, layers: int, dropout: float, dtype: torch.dtype
) -> None:
    graph = make_graph(80, 110, seed=2)
    config = Gat(layers=layers, dropout=dropout, implementation=implementation)
    model = make_model(graph, config, dtype)
    whole = build_chunks(graph, 1, "contiguous", layers)
    expected_loss, expected = gradients(model, whole, seed=3, step=5)
    for count in (1, 2, 3, 4):
        chunkset = build_chunks(graph, count, "halo", layers)
        loss, found = gradients(model, chunkset, seed=3, step=5)
        assert loss == pytest.approx(expected_loss, rel=TOLERANCE[dtype])
        assert worst_layer_error(found, expected) < (TOLERANCE[dtype], ""), count
