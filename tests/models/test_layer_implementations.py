"""Every graph layer computes one function in our form, in PyG's and in DGL's: same outputs, same
gradients, same parameters from the same initial values, same dropout.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnhpc.experiment.experiment import Experiment
from gnnhpc.graphs.graph import Graph
from gnnhpc.graphs.halo_chunks import ChunkMode, build_chunks
from gnnhpc.kernels.torch import segments
from gnnhpc.models.convolutions import GraphConv, Sage
from gnnhpc.models.deep_gcn import Gcnii
from gnnhpc.models.model import Model
from tests.tools.backends import computed_by, has_kernel, threads
from tests.tools.dgl import needs_dgl
from tests.tools.graphs import (
    MODELS,
    assert_same_numbers,
    gradients,
    make_graph,
    make_model,
    worst_layer_error,
)

DGL_LACKS = ("sage-max", "graphconv", "gcnii")
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
CUTS: list[tuple[ChunkMode, int]] = [("halo", 1), ("halo", 3), ("contiguous", 2)]


def of(model: Model, implementation: str) -> Model:
    return model.model_copy(update={"implementation": implementation})


def assert_same(graph: Graph, ours: Model, theirs: Model, dtype: torch.dtype) -> None:
    found, expected = (make_model(graph, model, dtype, seed=3) for model in (ours, theirs))
    values, wanted = found.state_dict(), expected.state_dict()
    assert sorted(values) == sorted(wanted)
    assert all(torch.equal(values[name], wanted[name]) for name in values)
    layers: Any = ours
    for mode, count in CUTS:
        chunkset = build_chunks(graph, min(count, graph.nodes), mode, layers.layers)
        assert_same_numbers(found, expected, chunkset.chunks, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize(("sparse", "labelled"), [(True, ()), (False, ()), (True, (3, 31))])
@pytest.mark.parametrize("name", list(MODELS))
def test_ours_is_pygs(
    name: str, sparse: bool, labelled: tuple[int, ...], dtype: torch.dtype
) -> None:
    """Where few nodes have labels, most rows have no gradient, and backward leaves them out."""
    pairs = 60 if labelled else 150
    graph = make_graph(60, pairs, features=12, classes=5, sparse=sparse, seed=1)
    graph = labelled_at(graph, *labelled) if labelled else graph
    assert_same(graph, MODELS[name], of(MODELS[name], "pyg"), dtype)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("name", [name for name in MODELS if name not in DGL_LACKS])
def test_ours_is_dgls(name: str, dtype: torch.dtype) -> None:
    needs_dgl()
    graph = make_graph(60, 150, features=12, classes=5, seed=1)
    assert_same(graph, MODELS[name], of(MODELS[name], "dgl"), dtype)


def labelled_at(graph: Graph, *nodes: int) -> Graph:
    """With labels for training at these nodes alone."""
    train = torch.zeros(len(graph.labels), dtype=torch.bool)
    train[list(nodes)] = True
    return replace(graph, masks=graph.masks | {"train": train})


@pytest.mark.parametrize("nodes", [(), (3, 31)])
@pytest.mark.parametrize("name", list(MODELS))
def test_threads_change_no_more_than_rounding_and_repeat_bitwise(
    name: str, nodes: tuple[int, ...]
) -> None:
    graph = make_graph(60, 150, features=12, classes=5, seed=6)
    graph = labelled_at(graph, *nodes) if nodes else graph
    layers: Any = MODELS[name]
    chunkset = build_chunks(graph, 2, "halo", layers.layers)
    model = make_model(graph, MODELS[name], torch.float32)
    with threads(1):
        _, expected = gradients(model, chunkset)
    with threads(3):
        (_, found), (_, again) = (gradients(model, chunkset) for _ in range(2))
    assert worst_layer_error(found, expected)[0] < 1e-5
    assert all(torch.equal(found[name], again[name]) for name in expected)


@pytest.mark.parametrize("name", list(MODELS))
def test_the_kernels_and_plain_torch_agree(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The form for other devices, in pieces of few edges."""
    if not has_kernel():
        pytest.skip("no compiler")
    graph = make_graph(60, 150, features=12, classes=5, seed=1)
    model = make_model(graph, MODELS[name], torch.float64, seed=3)
    layers: Any = MODELS[name]
    chunkset = build_chunks(graph, 3, "halo", layers.layers)
    loss, expected = gradients(model, chunkset, seed=4, step=9)
    monkeypatch.setattr(segments, "PIECE_CPU", 200)
    with computed_by("torch"):
        found_loss, found = gradients(model, chunkset, seed=4, step=9)
    assert found_loss == pytest.approx(loss, rel=1e-12)
    error, layer = worst_layer_error(found, expected)
    assert error < 1e-10, layer


@pytest.mark.slow
@given(
    nodes=st.integers(1, 12),
    pairs=st.integers(0, 20),
    one_way=st.booleans(),
    name=st.sampled_from(list(MODELS)),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=60, deadline=None)
def test_graphs_of_one_node_without_edges_and_of_one_direction(
    nodes: int, pairs: int, one_way: bool, name: str, seed: int
) -> None:
    """A node without neighbours has a mean, a sum and a largest of 0."""
    graph = make_graph(nodes, pairs, features=4, classes=3, seed=seed)
    if one_way:
        source, target = graph.edges
        graph = Graph(
            graph.name,
            graph.features,
            graph.labels,
            graph.edges[:, source < target],
            graph.masks,
            graph.classes,
        )
    assert_same(graph, MODELS[name], of(MODELS[name], "pyg"), torch.float64)


@pytest.mark.parametrize("implementation", ["pyg", "dgl"])
@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("name", [name for name in MODELS if MODELS[name].uses_edge_weight])
def test_weights_of_edges_count_in_all_implementations(
    name: str, dtype: torch.dtype, implementation: str
) -> None:
    if implementation == "dgl" and name in DGL_LACKS:
        pytest.skip(f"DGL has no {name} of weighted graphs")
    if implementation == "dgl":
        needs_dgl()
    graph = make_graph(60, 150, features=12, classes=5, seed=1)
    weights = torch.rand(graph.edges.shape[1], generator=torch.Generator().manual_seed(2)) * 2
    weighted = replace(graph, edge_weight=weights)
    assert_same(weighted, MODELS[name], of(MODELS[name], implementation), dtype)
    model = make_model(graph, MODELS[name], dtype, seed=3)
    layers: Any = MODELS[name]
    sides = [build_chunks(each, 1, "halo", layers.layers) for each in (graph, weighted)]
    plain, other = (gradients(model, side)[0] for side in sides)
    assert abs(other - plain) > 1e-3 * plain


def test_what_dgl_lacks_is_refused_when_it_is_planned() -> None:
    for model, words in (
        (Sage(aggregator="max", implementation="dgl"), "aggregator max"),
        (GraphConv(implementation="dgl"), "GraphConv"),
        (Gcnii(implementation="dgl"), "GCNII"),
    ):
        with pytest.raises(ValueError, match=f"found dgl, which has no .*{words}"):
            Experiment.model_validate({"model": model, "data": {"name": "cora"}})


@pytest.mark.parametrize("name", list(MODELS))
def test_parameters_are_as_many_as_the_outline_says(name: str) -> None:
    from gnnhpc.core.dataset_sizes import Facts

    graph = make_graph(60, 150, features=12, classes=5, seed=1)
    facts = Facts("graph", 12, 5, nodes=60, edges=graph.edges.shape[1])
    outlines = MODELS[name].outline(facts)
    built = sum(p.numel() for p in make_model(graph, MODELS[name]).parameters())
    assert sum(each.parameters or 0 for each in outlines) == built
