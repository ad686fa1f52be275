"""Sampled mini-batches: with all neighbours a halo, and in parts what they are together."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from gnnhpc.batches.sampled.neighbor_sampler import NeighborSampler
from gnnhpc.experiment.sampling import Semantics
from gnnhpc.graphs.blocks import GraphChunk
from gnnhpc.graphs.graph import Graph
from gnnhpc.graphs.halo_chunks import build_chunks
from gnnhpc.kernels import sample_neighbors as sample
from tests.tools.graphs import (
    MODELS,
    chunk_set,
    dense_graph,
    gradients,
    make_graph,
    make_model,
    worst_layer_error,
)

pytestmark = pytest.mark.skipif(not sample.is_here(), reason="needs a C++ compiler, as g++")
FANOUTS = (4, 3, 2)
SEED, STEP = 7, 12
MODEL_NAMES = ("sage", "sage-pool", "gin", "graphconv", "gat", "gatv2")


def sampler(graph: Graph, semantics: Semantics = "resample") -> NeighborSampler:
    return NeighborSampler(graph, FANOUTS, SEED, semantics=semantics)


def test_with_all_neighbours_it_is_a_chunk_with_a_halo() -> None:
    graph = make_graph(40, 90, features=12, classes=5, seed=3)
    (whole,) = build_chunks(graph, 1, "halo", 3).chunks
    drawn = NeighborSampler(graph, (99, 99, 99), SEED).chunk(torch.arange(40), STEP)
    halves = build_chunks(graph, 2, "halo", 3).chunks
    for wanted, found in ((whole, drawn), *((half, _of_own(graph, half)) for half in halves)):
        real = wanted.nodes >= 0
        assert found.nodes.equal(wanted.nodes[real])
        assert found.degree.equal(wanted.degree[real])
        assert found.own == wanted.own
        if wanted is whole:
            assert found.rows == wanted.rows
        for one, other in zip(found.blocks, wanted.blocks, strict=True):
            assert one.edge.equal(other.edge)
            assert found.nodes[one.source].equal(wanted.nodes[other.source])
            assert found.nodes[one.target].equal(wanted.nodes[other.target])
            by, wanted_by = one.transpose, other.transpose
            assert found.nodes[by.target].equal(wanted.nodes[wanted_by.target])
        for split, labels in found.targets.items():
            assert labels.equal(wanted.targets[split][: len(labels)])


def test_without_some_edges_it_is_that_of_the_graph_without_them() -> None:
    graph = make_graph(40, 90, features=12, classes=5, seed=3)
    left_out = torch.randperm(graph.edges.shape[1])[:50].sort().values
    kept = torch.ones(graph.edges.shape[1], dtype=torch.bool)
    kept[left_out] = False
    smaller = replace(graph, edges=graph.edges[:, kept])
    found = sampler(graph).chunk(torch.arange(9), STEP, left_out)
    wanted = sampler(smaller).chunk(torch.arange(9), STEP)
    assert found.nodes.equal(wanted.nodes)
    assert found.degree.equal(wanted.degree)
    for one, other in zip(found.blocks, wanted.blocks, strict=True):
        assert one.indptr.equal(other.indptr)
        assert one.source.equal(other.source)
        assert not torch.isin(one.edge, left_out).any()


def _of_own(graph: Graph, chunk: GraphChunk) -> GraphChunk:
    return NeighborSampler(graph, (99, 99, 99), SEED).chunk(chunk.nodes[: chunk.own], STEP)


@pytest.mark.parametrize("semantics", ["resample", "once"])
@pytest.mark.parametrize("name", MODEL_NAMES)
def test_batches_drawn_apart_learn_what_one_of_all_learns(name: str, semantics: Semantics) -> None:
    """Dropout too: masks are of nodes and edges, wherever they are computed."""
    graph = dense_graph()
    model = make_model(graph, MODELS[name], torch.float64)
    draw = sampler(graph, semantics)
    seeds = torch.randperm(80)[:48]
    together, apart = (
        gradients(model, chunk_set(*chunks), seed=SEED, step=STEP)
        for chunks in (
            [draw.chunk(part.sort().values, STEP) for part in seeds.split(size)]
            for size in (48, 11)
        )
    )
    assert apart[0] == pytest.approx(together[0], rel=1e-12)
    assert worst_layer_error(apart[1], together[1])[0] < 1e-10


def edges_of(chunk: GraphChunk, layer: int, node: int) -> Tensor:
    row = int((chunk.nodes == node).nonzero())
    block = chunk.blocks[layer]
    return block.edge[block.indptr[row] : block.indptr[row + 1]]


def test_once_a_node_has_the_same_neighbours_in_all_layers_and_resampled_others() -> None:
    same = {}
    for semantics in ("once", "resample"):
        draw = NeighborSampler(dense_graph(), (3, 3, 3), SEED, semantics=semantics)
        chunk = draw.chunk(torch.arange(30), STEP)
        pairs = [(edges_of(chunk, 2, node), edges_of(chunk, 1, node)) for node in range(30)]
        same[semantics] = sum(one.equal(other) for one, other in pairs)
    assert same["once"] == 30
    assert same["resample"] < 15
