"""Every graph layer computes one function in C++, Triton and torch, and in PyG's form and DGL's:
same outputs, same gradients, same parameters from the same initial values, same dropout.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch_geometric.nn import GATConv

from gnnhpc.experiment.experiment import Experiment
from gnnhpc.graphs.graph import Graph
from gnnhpc.graphs.halo_chunks import ChunkMode, build_chunks
from gnnhpc.kernels.dispatch import Backend
from gnnhpc.kernels.torch import torch_aggregate
from gnnhpc.models.convolutions import GraphConv, Sage
from gnnhpc.models.deep_gcn import Gcnii
from gnnhpc.models.gat import Gat, Gatv2
from gnnhpc.models.model import Context, Model
from tests.tools.backends import codes_that_compute, computed_by, device_of, needs_dgl, threads
from tests.tools.graphs import (
    MODELS,
    assert_same_numbers,
    forward,
    gradients,
    make_graph,
    make_model,
    relative_error,
    worst_layer_error,
)

DGL_LACKS = ("sage-max", "graphconv", "gcnii")
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
CUTS: list[tuple[ChunkMode, int]] = [("halo", 1), ("halo", 3), ("contiguous", 2)]
SHAPES = {
    f"{kind.__name__}, {heads} heads of {hidden}": kind(
        layers=2, heads=heads, hidden=hidden, dropout=dropout
    )
    for kind in (Gat, Gatv2)
    for heads, hidden, dropout in ((8, 8, 0.6), (3, 8, 0.0), (1, 16, 0.6), (16, 3, 0.3))
}
"""Attention in numbers of heads and channels that fill vectors, and that do not."""
CASES: dict[str, Model] = MODELS | SHAPES
each_dtype = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
each_model = pytest.mark.parametrize("name", MODELS)


def of(model: Model, implementation: str) -> Model:
    return model.model_copy(update={"implementation": implementation})


def layers_of(model: Model) -> int:
    return int(model.layers)  # type: ignore[attr-defined]


def plain_graph(**changes: Any) -> Graph:
    return make_graph(60, 150, **{"features": 12, "classes": 5, "seed": 1, **changes})


def labelled_at(graph: Graph, *nodes: int) -> Graph:
    """With labels for training at these nodes alone: backward may leave most rows out."""
    train = torch.zeros(len(graph.labels), dtype=torch.bool)
    train[list(nodes)] = True
    return replace(graph, masks=graph.masks | {"train": train})


def strange_graphs() -> Iterator[Graph]:
    """Of stored and dense features and few labels; of a single node, without edges, and with edges
    in one direction."""
    yield plain_graph()
    yield plain_graph(sparse=False)
    yield labelled_at(make_graph(60, 60, features=12, classes=5, seed=1), 3, 31)
    for nodes, pairs in ((1, 0), (7, 0), (12, 20)):
        graph = make_graph(nodes, pairs, features=12, classes=5, seed=4)
        source, target = graph.edges
        yield replace(graph, edges=graph.edges[:, source < target])


def assert_same(graph: Graph, ours: Model, theirs: Model, dtype: torch.dtype) -> None:
    found, expected = (make_model(graph, model, dtype, seed=3) for model in (ours, theirs))
    values, wanted = found.state_dict(), expected.state_dict()
    assert sorted(values) == sorted(wanted)
    assert all(torch.equal(values[name], wanted[name]) for name in values)
    for mode, count in CUTS:
        chunks = build_chunks(graph, min(count, graph.nodes), mode, layers_of(ours)).chunks
        assert_same_numbers(found, expected, chunks, TOLERANCE[dtype])


@each_dtype
@pytest.mark.parametrize("code", ["c++", "torch"])
@pytest.mark.parametrize("name", CASES)
def test_ours_is_pygs(
    name: str, code: Backend, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In torch large graphs are computed in pieces of edges.
    monkeypatch.setattr(torch_aggregate, "PIECE_CPU", 200)
    with computed_by(code), codes_that_compute() as codes:
        for graph in strange_graphs():
            assert_same(graph, CASES[name], of(CASES[name], "pyg"), dtype)
    assert codes == {code} - {"torch"}


@pytest.mark.quick("gcn-stored", "gin-dense", "sage-dense", "sage-max-dense")
@pytest.mark.parametrize("sparse", [True, False], ids=["stored", "dense"])
@pytest.mark.parametrize("name", ["gat", "gatv2", "gcn", "sage", "sage-max", "gin"])
def test_a_step_by_triton_is_that_of_torch(name: str, sparse: bool) -> None:
    sizes = {"heads": 2, "hidden": 3} if "gat" in name else {"hidden": 5}
    config = MODELS[name].model_copy(update={"layers": 2, **sizes})
    graph = make_graph(20, 60, sparse=sparse, seed=7)
    chunkset, sides = build_chunks(graph, 1, "halo", 2), []
    for code in ("torch", "triton"):
        with computed_by(code), codes_that_compute() as codes:
            model = make_model(graph, config).to(device_of(code))
            sides.append(gradients(model, chunkset, step=3))
        assert codes == {code} - {"torch"}
    (loss, expected), (other, found) = sides
    assert other == pytest.approx(loss, rel=1e-10)
    assert worst_layer_error({name: x.cpu() for name, x in found.items()}, expected)[0] < 1e-10


def weighted(graph: Graph) -> Graph:
    draw = torch.Generator().manual_seed(2)
    return replace(graph, edge_weight=torch.rand(graph.edges.shape[1], generator=draw) * 2)


@each_dtype
@pytest.mark.parametrize("name", [name for name in MODELS if name not in DGL_LACKS])
def test_ours_is_dgls(name: str, dtype: torch.dtype) -> None:
    needs_dgl()
    graph = plain_graph()
    for each in (graph, weighted(graph)) if MODELS[name].uses_edge_weight else (graph,):
        assert_same(each, MODELS[name], of(MODELS[name], "dgl"), dtype)


@each_dtype
@pytest.mark.parametrize("name", [name for name in MODELS if MODELS[name].uses_edge_weight])
def test_weights_of_edges_count(name: str, dtype: torch.dtype) -> None:
    graphs = plain_graph(), weighted(plain_graph())
    assert_same(graphs[1], MODELS[name], of(MODELS[name], "pyg"), dtype)
    model = make_model(graphs[0], MODELS[name], dtype, seed=3)
    sides = [build_chunks(each, 1, "halo", layers_of(MODELS[name])) for each in graphs]
    plain, other = (gradients(model, side)[0] for side in sides)
    assert abs(other - plain) > 1e-3 * plain


@each_model
def test_threads_change_no_more_than_rounding_and_repeat_bitwise(name: str) -> None:
    for graph in (plain_graph(seed=6), labelled_at(plain_graph(seed=6), 3, 31)):
        chunkset = build_chunks(graph, 2, "halo", layers_of(MODELS[name]))
        model = make_model(graph, MODELS[name], torch.float32)
        with threads(1):
            _, expected = gradients(model, chunkset)
        with threads(3):
            (_, found), (_, again) = (gradients(model, chunkset) for _ in range(2))
        assert worst_layer_error(found, expected)[0] < 1e-5
        assert all(torch.equal(found[name], again[name]) for name in expected)


@pytest.mark.parametrize("implementation", ["fused", "pyg"])
@each_model
def test_halo_chunks_have_the_full_graphs_gradient(name: str, implementation: str) -> None:
    graph = make_graph(80, 110, features=12, classes=5, seed=2)
    config = of(MODELS[name], implementation)
    model = make_model(graph, config)
    whole = build_chunks(graph, 1, "contiguous", layers_of(config))
    expected_loss, expected = gradients(model, whole, seed=3, step=5)
    for count in (2, 3, 4):
        chunkset = build_chunks(graph, count, "halo", layers_of(config))
        loss, found = gradients(model, chunkset, seed=3, step=5)
        assert loss == pytest.approx(expected_loss, rel=1e-10)
        assert worst_layer_error(found, expected) < (1e-10, ""), count


def test_gat_is_two_layers_of_pygs_as_pyg_calls_them() -> None:
    graph = make_graph(50, 120, seed=1)
    (chunk,) = build_chunks(graph, 1, "contiguous", 2).chunks
    model = make_model(graph, Gat()).eval()
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


def test_what_dgl_lacks_is_refused_when_it_is_planned() -> None:
    for model, words in (
        (Sage(aggregator="max", implementation="dgl"), "aggregator max"),
        (GraphConv(implementation="dgl"), "GraphConv"),
        (Gcnii(implementation="dgl"), "GCNII"),
    ):
        with pytest.raises(ValueError, match=f"found dgl, which has no .*{words}"):
            Experiment.model_validate({"model": model, "data": {"name": "cora"}})
