"""Blocks of our sampler are int32, or int64 where that could not number all: the same bits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gnnhpc.batches.sampled.neighbor_sampler import NeighborSampler, SampledBlock
from gnnhpc.graphs.blocks import Block, GraphChunk
from gnnhpc.kernels import sample_neighbors as sample
from gnnhpc.kernels.dispatch import Backend
from gnnhpc.kernels.sample_neighbors import Layer, Sampler, by_source
from tests.tools.backends import computed_by
from tests.tools.graphs import MODELS, block_tensors, chunk_set, dense_graph, gradients, make_model

pytestmark = pytest.mark.skipif(not sample.is_here(), reason="needs a C++ compiler, as g++")


def sampled_chunk() -> GraphChunk:
    """With numbers of edges up to the last that int32 has: masks of dropout are made of them."""
    graph = dense_graph()
    chunk = NeighborSampler(graph, (4, 3, 2), 7).chunk(torch.arange(0, 80, 3), 12)
    last = graph.edges.shape[1] + graph.nodes - 1
    blocks = [replace(block, edge=block.edge + (2**31 - 1 - last)) for block in chunk.blocks]
    return replace(chunk, blocks=tuple(blocks))


def widened(chunk: GraphChunk) -> GraphChunk:
    def wide(block: Block) -> Block:
        own = (block.indptr, block.source, block.target, block.edge)
        return SampledBlock(*(part.long() for part in own), block.rows_in)

    return replace(chunk, blocks=tuple(map(wide, chunk.blocks)))


def test_all_of_a_block_is_of_one_type() -> None:
    narrow = sampled_chunk()
    for block, wide in zip(narrow.blocks, widened(narrow).blocks, strict=True):
        assert {part.dtype for part in block_tensors(block)} == {torch.int32}
        assert {part.dtype for part in block_tensors(wide)} == {torch.int64}
        for one, other in zip(block_tensors(block), block_tensors(wide), strict=True):
            assert one.long().equal(other)
        # What PyG takes.
        assert block.edge_index.dtype == block.neighbours.dtype == torch.int64
        assert block.edge_index.equal(torch.stack((wide.source, wide.target)))


@pytest.mark.parametrize("code", ["c++", "torch"])
@pytest.mark.parametrize("name", ["sage-pool", "gin", "gcn", "gatv2"])
def test_layers_compute_the_same_bits_on_both(name: str, code: Backend) -> None:
    narrow, model = sampled_chunk(), make_model(dense_graph(), MODELS[name], torch.float32)
    with computed_by(code):
        sides = [
            gradients(model, chunk_set(chunk), seed=7, step=12)
            for chunk in (narrow, widened(narrow))
        ]
    (loss, found), (other, wanted) = sides
    assert loss == other
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_a_graph_of_more_edges_than_int32_can_number(tmp_path: Path) -> None:
    """Its columns are a file with holes: but a few pages of its 8 GiB are there."""
    nodes, degree, layer = 2**16, 2**15, Layer(3, 1, 2, 0)
    indptr = torch.arange(nodes + 1) * degree
    file = tmp_path / "columns"
    with file.open("wb") as stream:
        stream.truncate(4 * nodes * degree)
    columns = torch.from_file(str(file), shared=True, size=nodes * degree, dtype=torch.int32)
    sampler = Sampler(indptr, columns)
    seeds = torch.tensor([0, 77, nodes - 1])
    sampler.begin(seeds)
    first = sampler.draw(layer)
    parts = first.indptr, first.source, first.target, first.edge
    assert {part.dtype for part in parts} == {torch.int64}
    rows = first.edge.view(3, 4)
    assert rows[:, 3].equal(nodes * degree + seeds)
    assert (rows[:, :3] // degree).equal(seeds[:, None].expand(3, 3))
    assert first.source.tolist() == [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2]
    _, order, end = by_source(first)
    assert first.target.tolist() == [row for row in range(3) for _ in range(4)]
    assert order.equal(first.source.argsort(stable=True))
    assert end.equal(first.target[order])
