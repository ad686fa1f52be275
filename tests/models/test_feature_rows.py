"""First layers compute the same of features however they lie: stored, dense, or read by number."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gnnhpc.batches.batch import BatchPlan
from gnnhpc.batches.graph_batch import features_form
from gnnhpc.batches.sampled.neighbor_sampler import NeighborSampler
from gnnhpc.core.dataset_sizes import Facts
from gnnhpc.core.layout import Layout
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.experiment.stage_cut import outline
from gnnhpc.graphs.halo_chunks import build_chunks
from gnnhpc.graphs.node_features import IndexedRows, SparseRows, computed_dtype, feature_rows
from gnnhpc.kernels import sample_neighbors as sample
from gnnhpc.models.model import BuildOptions, Context
from tests.tools.cells import gat
from tests.tools.graphs import MODELS, make_graph

needs_sampler = pytest.mark.skipif(not sample.is_here(), reason="needs a C++ compiler, as g++")


def taken(layers: nn.ModuleList, x: Any, context: Context) -> list[Tensor]:
    """The output and the gradients of the layers."""
    layers.zero_grad()
    for layer in layers:
        x = layer(x, context)
    x.square().sum().backward()
    return [x.detach(), *(p.grad.clone() for p in layers.parameters() if p.grad is not None)]


def first_layers(name: str, width: int, dtype: torch.dtype, count: int | None) -> nn.ModuleList:
    model, facts = MODELS[name], Facts("graph", width, 5, nodes=90, edges=900)
    torch.manual_seed(1)
    return nn.ModuleList(
        model.build(layer, BuildOptions(dtype)) for layer in model.outline(facts)[:count]
    )


@pytest.mark.parametrize("name", MODELS)
def test_dense_rows_train_as_stored_ones(name: str) -> None:
    """Dropout masks included."""
    graph = make_graph(90, 300, features=12, classes=5, seed=7)
    (chunk,) = build_chunks(graph, 1, "halo", 3).chunks
    x = feature_rows(graph.features, chunk.nodes, torch.float64)
    assert isinstance(x, SparseRows)
    layers = first_layers(name, 12, torch.float64, None)
    sides = [
        taken(layers, replace(x, dense=dense), Context(step=3, graph=chunk))
        for dense in (False, True)
    ]
    for one, other in zip(*sides, strict=True):
        assert torch.allclose(one, other, rtol=1e-9, atol=1e-12)


@needs_sampler
@pytest.mark.parametrize("kept", [torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("width", [3, 61])
@pytest.mark.parametrize("name", [name for name in MODELS if name not in ("resgcn", "gcnii")])
def test_rows_by_number_are_their_copies(name: str, width: int, kept: torch.dtype) -> None:
    """But for rounding, of features narrower and wider than the layer's output; attention has
    dropout before it, with the mask of the whole graph."""
    graph = make_graph(90, 900, features=width, classes=5, seed=3)
    features = graph.features.to_dense().to(kept)
    dtype = computed_dtype(features)
    chunk = NeighborSampler(graph, (3, 2, 2), 7).chunk(torch.arange(0, 90, 4), 2)
    layers = first_layers(name, width, dtype, 2 if name.startswith("gat") else 1)
    rows, context = IndexedRows(features, chunk.nodes), Context(0, 2, 7, chunk)
    sides = [taken(layers, x, context) for x in (rows, rows.to_dense())]
    for one, other in zip(*sides, strict=True):
        near = 16 * torch.finfo(dtype).eps * float(other.abs().max())
        torch.testing.assert_close(one, other, rtol=0, atol=near)


def test_auto_takes_dense_rows_on_a_gpu_where_many_values_are_stored() -> None:
    for asked, device, stored, form in (
        ("auto", "cpu", 0.9, "stored"),
        ("auto", "cuda", 0.9, "dense"),
        ("auto", "cuda", 0.04, "stored"),
        ("stored", "cuda", 0.9, "stored"),
        ("dense", "cpu", 0.04, "dense"),
    ):
        features = (torch.arange(1000).view(100, 10) < stored * 1000).float().to_sparse_csr()
        experiment = gat(features=asked)
        mesh = Mesh(Layout(), 0, torch.device(device))
        plan = BatchPlan(experiment, outline(experiment), mesh, None)
        assert features_form(features, plan) == form
        assert features_form(features.to_dense(), plan) == "dense"
