"""The weights of edges in every kind of chunk, as layers read them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from gnnhpc.batches.chunk_batches import subgraph_builder
from gnnhpc.batches.sampled.dgl_loader import DglLoader
from gnnhpc.batches.sampled.library_loader_base import LibraryBlock
from gnnhpc.batches.sampled.neighbor_sampler import NeighborSampler
from gnnhpc.experiment.sampling import Sampling
from gnnhpc.graphs.blocks import Block, GraphChunk
from gnnhpc.graphs.graph import Graph
from gnnhpc.graphs.halo_chunks import build_chunks
from gnnhpc.kernels import sample_neighbors as sample
from tests.tools.backends import needs_dgl
from tests.tools.graphs import make_graph


@pytest.fixture
def graph() -> Graph:
    graph = make_graph(60, 200, seed=3)
    return replace(graph, edge_weight=torch.rand(graph.edges.shape[1]))


def check_block(graph: Graph, block: Block) -> None:
    """Each edge has its own weight, and a self-loop 1."""
    assert graph.edge_weight is not None
    assert block.edge_weight is not None
    loops = block.edge >= len(graph.edge_weight)
    assert block.edge_weight.dtype == torch.float32
    assert block.edge_weight[loops].eq(1).all()
    assert block.edge_weight[~loops].equal(graph.edge_weight[block.edge[~loops].long()])
    assert block.neighbour_weight is not None
    assert block.neighbour_weight.equal(block.edge_weight[block.source != block.target])


def check_chunk(graph: Graph, chunk: GraphChunk, kept: Any = slice(None)) -> None:
    assert graph.edge_weight is not None
    for block in chunk.blocks:
        check_block(graph, block)
    real = chunk.nodes >= 0
    sums = torch.ones(graph.nodes, dtype=torch.float64)
    sums.index_add_(0, graph.edges[1][kept], graph.edge_weight[kept].double())
    assert chunk.weighted_degree is not None
    assert torch.allclose(chunk.weighted_degree[real], sums[chunk.nodes[real]])
    assert chunk.weighted_degree[~real].eq(1).all()


def test_chunks_of_a_whole_graph(graph: Graph) -> None:
    """Without a halo, degrees count the edges that a chunk keeps."""
    for chunk in build_chunks(graph, 3, "halo", 2).chunks:
        check_chunk(graph, chunk)
        check_block(graph, chunk.to("cpu").blocks[0])
    owner = torch.arange(60) * 3 // 60
    kept = owner[graph.edges[0]] == owner[graph.edges[1]]
    for chunk in build_chunks(graph, 3, "contiguous", 2).chunks:
        check_chunk(graph, chunk, kept)
        check_block(graph, subgraph_builder(graph, "pyg")(chunk.nodes))


@pytest.mark.skipif(not sample.is_here(), reason="needs a C++ compiler, as g++")
def test_sampled_chunks(graph: Graph) -> None:
    check_chunk(graph, NeighborSampler(graph, (3, 2), 7).chunk(torch.arange(9), 1))
    trained = graph.masks["train"]
    inside = graph.among(trained)
    seeds = trained.nonzero().flatten()[:9]
    check_chunk(inside, NeighborSampler(inside, (3, 2), 7).chunk(seeds, 1))


def test_chunks_of_dgl(graph: Graph) -> None:
    needs_dgl()
    sampling = Sampling(fanouts=(3, 2), sampler="dgl", fused=False)
    with DglLoader(graph, sampling, 7).chunks([torch.arange(9)], 1) as chunks:
        check_chunk(graph, next(chunks))


def test_the_weights_of_all_edges_are_copied_to_a_device_once(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every block of every mini-batch of a library's sampler reads them there."""
    edges = torch.zeros(2, 0, dtype=torch.int64)
    blocks = [
        LibraryBlock(torch.arange(9), 9, graph, neighbours=edges, numbers=edges[0]).to("meta")
        for _ in range(2)
    ]
    copied, to = [], Tensor.to
    monkeypatch.setattr(Tensor, "to", lambda x, *args: copied.append(x) or to(x, *args))
    assert all(block.edge_weight is not None for block in blocks)
    assert [x is graph.edge_weight for x in copied] == [True]
