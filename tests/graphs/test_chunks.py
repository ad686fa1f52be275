"""Chunks: what each carries, what is lost or computed twice, and that one chunk is the graph."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnhpc.graphs.blocks import Block, BlocksOnRequest, GraphChunk
from gnnhpc.graphs.graph import IGNORED, Graph
from gnnhpc.graphs.halo_chunks import ChunkMode, ChunkSet, build_chunks
from gnnhpc.graphs.node_features import SparseRows, feature_rows
from tests.tools.graphs import make_graph

MODES: tuple[ChunkMode, ...] = ("contiguous", "clustered", "halo")


def real_edges(chunk: GraphChunk, layer: int, graph: Graph) -> set[tuple[int, int]]:
    """Global (source, target) of a block's edges, each checked against its edge number."""
    block = chunk.blocks[layer]
    source, target = chunk.nodes[block.source], chunk.nodes[block.target]
    assert torch.equal(
        block.target,
        torch.repeat_interleave(torch.arange(block.rows_out), block.indptr.diff()),
    )
    loops = torch.arange(len(graph.labels)).expand(2, -1)
    expected = torch.cat((graph.edges, loops), dim=1)[:, block.edge]
    assert torch.equal(torch.stack((source, target)), expected)
    assert len(block.edge.unique()) == len(block.edge)
    return {(a, b) for a, b in zip(source.tolist(), target.tolist(), strict=True) if a != b}


def check_chunk(chunk: GraphChunk, graph: Graph) -> None:
    dense = graph.features.to_dense()
    real = chunk.nodes >= 0
    assert len(chunk.nodes[real].unique()) == real.sum(), "a node is there once"
    assert (chunk.nodes[~real] == -1).all()
    rows = feature_rows(graph.features, chunk.nodes, torch.float32)
    features = rows.to_dense()
    assert torch.equal(features[real], dense[chunk.nodes[real]])
    assert not features[~real].any()
    if isinstance(rows, SparseRows):
        assert torch.equal(graph.features.values()[rows.entries], rows.values)
    check_degree(chunk)
    for layer, block in enumerate(chunk.blocks):
        assert (block.rows_in, block.rows_out) == (chunk.rows[layer], chunk.rows[layer + 1])
        real_edges(chunk, layer, graph)
        assert torch.equal(block.transpose.edge, block.source.argsort(stable=True))
        loops = block.edge >= graph.edges.shape[1]
        rows = real[: block.rows_out].nonzero().flatten()
        assert torch.equal(block.source[loops], rows)
        assert torch.equal(block.target[loops], rows)
        assert not block.indptr.diff()[~real[: block.rows_out]].any()


def check_degree(chunk: GraphChunk) -> None:
    """Of the graph as it is cut: a node that a block aggregates into has all of its edges there."""
    if not chunk.blocks:
        return
    block = chunk.blocks[0]
    assert torch.equal(chunk.degree[: block.rows_out], block.indptr.diff().clamp(min=1))
    assert (chunk.degree[chunk.nodes < 0] == 1).all()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_a_block_has_its_edges_in_the_form_of_each_reader(dtype: torch.dtype) -> None:
    # Edges 0-1, 3-1 and 3-0, and the self-loops of two rows.
    target, source = torch.tensor([[0, 0, 1, 1, 1], [0, 3, 0, 1, 3]], dtype=dtype)
    weights = torch.tensor([1.0, 0.5, 2.0, 1.0, 3.0])
    indptr, edge = torch.tensor([0, 2, 5], dtype=dtype), torch.arange(5, dtype=dtype)
    block = Block(indptr, source, target, edge, rows_in=4, edge_weight=weights)
    assert block.edge_index.tolist() == [[0, 3, 0, 1, 3], [0, 0, 1, 1, 1]]
    assert block.neighbours.tolist() == [[3, 0, 3], [0, 1, 1]]
    assert block.neighbour_count == 3
    assert block.neighbour_weight is not None
    assert block.neighbour_weight.tolist() == [0.5, 2.0, 3.0]
    assert dataclasses.replace(block, edge_weight=None).neighbour_weight is None
    by_source = block.transpose
    assert by_source.indptr.tolist() == [0, 2, 3, 3, 5]
    assert by_source.edge.tolist() == [0, 2, 3, 1, 4]
    assert by_source.target.tolist() == [0, 1, 1, 0, 1]
    assert {x.dtype for x in (by_source.indptr, by_source.edge, by_source.target)} == {dtype}
    assert block.pieces(2) == [(slice(0, 1), slice(0, 2)), (slice(1, 2), slice(2, 5))]
    assert block.pieces(5) == [(slice(0, 2), slice(0, 5))]


def test_blocks_move_to_a_device_once_and_when_a_layer_asks() -> None:
    chunk = build_chunks(make_graph(9, 12, seed=0), 2, "halo", 2).chunks[0].to("meta")
    assert isinstance(chunk.blocks, BlocksOnRequest)
    assert chunk.nodes.is_meta
    assert not any(block.source.is_meta for block in chunk.present_blocks)
    assert chunk.blocks[-1].source.is_meta
    assert chunk.blocks[1] is chunk.blocks[-1] is chunk.present_blocks[1]
    assert all(block.source.is_meta for block in chunk.blocks[:])


def owned(chunkset: ChunkSet, split: str) -> torch.Tensor:
    """Global ids of the nodes some chunk counts in `split`, doubled where two chunks do."""
    ids = [
        chunk.nodes[: chunk.rows[-1]][chunk.targets[split] != IGNORED] for chunk in chunkset.chunks
    ]
    return torch.cat(ids).sort().values


@settings(max_examples=25, deadline=None)
@given(
    st.integers(6, 40),
    st.integers(0, 80),
    st.integers(1, 5),
    st.sampled_from(MODES),
    st.integers(1, 3),
    st.booleans(),
    st.integers(0, 2**31),
)
def test_chunks_of_any_graph(
    nodes: int, pairs: int, count: int, mode: ChunkMode, hops: int, sparse: bool, seed: int
) -> None:
    graph = make_graph(nodes, pairs, sparse=sparse, seed=seed)
    chunkset = build_chunks(graph, count, mode, hops)
    assert len(chunkset.chunks) == count
    assert {chunk.rows for chunk in chunkset.chunks} == {chunkset.rows}
    assert len(chunkset.rows) == hops + 1
    assert sum(chunk.own for chunk in chunkset.chunks) == nodes
    for chunk in chunkset.chunks:
        check_chunk(chunk, graph)
    for split, mask in graph.masks.items():
        assert torch.equal(owned(chunkset, split), mask.nonzero().flatten())
    everything = set(map(tuple, graph.edges.t().tolist()))
    seen = set().union(*(real_edges(chunk, -1, graph) for chunk in chunkset.chunks))
    assert chunkset.edges_kept == (len(seen) / len(everything) if everything else 1.0)
    if mode == "halo":
        assert seen == everything
        layers = [real_edges(chunk, k, graph) for chunk in chunkset.chunks for k in range(hops)]
        total = sum(map(len, layers))
        assert chunkset.edge_redundancy == pytest.approx(
            total / (hops * len(everything)) if everything else 1.0
        )
    else:
        assert chunkset.node_redundancy == chunkset.edge_redundancy == 1.0


def test_a_halo_computes_only_what_later_layers_need() -> None:
    # Of the path 0-1-2-3-4-5 the half 0..2 needs 3 for its last layer, and 4 for the one before.
    ends = [[b, a] for a in range(6) for b in (a - 1, a + 1) if 0 <= b < 6]
    graph = dataclasses.replace(make_graph(6, 0, seed=0), edges=torch.tensor(ends).T.contiguous())
    chunkset = build_chunks(graph, 2, "halo", 2)
    assert chunkset.rows == (5, 4, 3)
    first = next(chunk for chunk in chunkset.chunks if 0 in chunk.nodes[:3])
    assert first.nodes.tolist() == [0, 1, 2, 3, 4]
    assert real_edges(first, 0, graph) == {
        (1, 0), (0, 1), (2, 1), (1, 2), (3, 2), (2, 3), (4, 3)
    }  # fmt: skip
    assert real_edges(first, 1, graph) == {(1, 0), (0, 1), (2, 1), (1, 2), (3, 2)}
    assert chunkset.node_redundancy == 10 / 6
    assert chunkset.edge_redundancy == (7 + 5) / (2 * 5)


@pytest.mark.parametrize("count", [0, 9])
def test_chunk_counts_that_cannot_be(count: int) -> None:
    with pytest.raises(ValueError, match="chunks of a graph of 8 nodes"):
        build_chunks(make_graph(8, 10, seed=0), count, "contiguous", 2)
    assert len(build_chunks(make_graph(8, 10, seed=0), 8, "contiguous", 2).chunks) == 8


def test_each_mode_has_its_own_owners() -> None:
    """Two rings of alternating nodes: ranges cut every edge, clusters none, a halo keeps all."""
    size = 12
    pairs = {(node, (node + 2) % size) for node in range(size)}
    edges = sorted((target, source) for a, b in pairs for source, target in ((a, b), (b, a)))
    target, source = torch.tensor(edges).t()
    graph = dataclasses.replace(make_graph(size, 0, seed=0), edges=torch.stack((source, target)))
    ranges = build_chunks(graph, 2, "contiguous", 1)
    assert [chunk.nodes.tolist() for chunk in ranges.chunks] == [[*range(6)], [*range(6, 12)]]
    assert ranges.edges_kept == 16 / 24
    for mode in ("clustered", "halo"):
        chunkset = build_chunks(graph, 2, mode, 1)
        owned = [set(chunk.nodes[: chunk.own].tolist()) for chunk in chunkset.chunks]
        assert sorted(map(min, owned)) == [0, 1]
        assert {node % 2 for node in owned[0]} != {node % 2 for node in owned[1]}
        assert chunkset.edges_kept == chunkset.node_redundancy == 1.0
