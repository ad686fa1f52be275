"""Stored features that are multiplied as dense rows train the same, dropout masks included."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gnnhpc.batches.batch import BatchPlan
from gnnhpc.batches.graph_batch import features_form
from gnnhpc.core.dataset_sizes import Facts
from gnnhpc.core.layer_specs import hops
from gnnhpc.core.layout import Layout
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.experiment.stage_cut import outline
from gnnhpc.graphs.halo_chunks import build_chunks
from gnnhpc.graphs.node_features import SparseRows, feature_rows
from gnnhpc.models.context import Context
from gnnhpc.models.model import BuildOptions
from gnnhpc.models.model_registry import model_class
from tests.tools.graphs import make_graph

GRAPH = make_graph(20, 60, seed=7)
FACTS = Facts(kind="graph", features=12, classes=3, nodes=20, edges=GRAPH.edges.shape[1])


def trained(model: dict[str, Any], *, dense: bool) -> list[Tensor]:
    """The output and the gradients of a step."""
    config = model_class(model["name"]).model_validate(model)  # type: ignore[union-attr]
    specs = config.outline(FACTS)
    (chunk,) = build_chunks(GRAPH, 1, "halo", hops(specs)).chunks
    x = feature_rows(GRAPH.features, chunk.nodes, torch.float64)
    assert isinstance(x, SparseRows)
    torch.manual_seed(0)
    layers = nn.ModuleList(config.build(each, BuildOptions(torch.float64)) for each in specs)
    out: Any = replace(x, dense=dense)
    for layer in layers:
        out = layer(out, Context(step=3, graph=chunk))
    out.square().sum().backward()
    return [out.detach(), *(p.grad for p in layers.parameters() if p.grad is not None)]


@pytest.mark.parametrize("name", ["gat", "gatv2", "gcn", "sage", "gin", "gcnii"])
def test_dense_rows_train_as_stored_ones(name: str) -> None:
    for one, other in zip(*(trained({"name": name}, dense=d) for d in (False, True)), strict=True):
        assert torch.allclose(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("asked", "device", "stored", "form"),
    [
        ("auto", "cpu", 0.9, "stored"),
        ("auto", "cuda", 0.9, "dense"),
        ("auto", "cuda", 0.04, "stored"),
        ("stored", "cuda", 0.9, "stored"),
        ("dense", "cpu", 0.04, "dense"),
    ],
)
def test_auto_takes_dense_rows_on_a_gpu_where_many_values_are_stored(
    asked: str, device: str, stored: float, form: str
) -> None:
    features = (torch.arange(1000).view(100, 10) < stored * 1000).float().to_sparse_csr()
    assert features_form(features, plan(asked, device)) == form
    assert features_form(features.to_dense(), plan(asked, device)) == "dense"


def plan(features: str, device: str = "cpu") -> BatchPlan:
    settings = {"model": "gcn", "data": "synthetic-citation", "features": features}
    experiment = Experiment.model_validate(settings)
    mesh = Mesh(Layout(), 0, torch.device(device))
    return BatchPlan(experiment, outline(experiment), mesh, None)
