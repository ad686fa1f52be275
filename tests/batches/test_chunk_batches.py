"""What a stage keeps on its device of a graph's chunks: what its layers use, and no more.

Chunks whose edges are cut out of the graph again in each layer have the same edges, every time.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gnnhpc.batches.batch import BatchPlan
from gnnhpc.batches.chunk_batches import ChunkBatches, RebuiltBlocks, subgraph_builder
from gnnhpc.core.layout import Layout
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.experiment.stage_cut import outline
from gnnhpc.graphs.blocks import Block
from gnnhpc.graphs.halo_chunks import ChunkMode, build_chunks
from tests.tools.backends import needs_dgl
from tests.tools.cells import gat
from tests.tools.graphs import make_graph

EXPERIMENT = gat(layout="pp3", microbatches=2, chunks="halo", model={"name": "gat", "layers": 3})


def batches_of(stage: int) -> ChunkBatches:
    mesh = Mesh(Layout(1, 3), stage, torch.device("meta"))
    return ChunkBatches(BatchPlan(EXPERIMENT, outline(EXPERIMENT), mesh, None))


def test_features_are_the_first_stages_and_labels_the_lasts() -> None:
    for stage in range(3):
        with batches_of(stage).open("train", 0, 1) as batches:
            (batch,) = batches
        for microbatch in batch.microbatches:
            assert (microbatch.inputs is not None) == (stage == 0)
            assert set(microbatch.targets) == ({"train"} if stage == 2 else set())
            assert bool(microbatch.context.chunk.targets) == (stage == 2)


def test_the_example_for_a_profile_has_its_labels() -> None:
    example = batches_of(0).example()
    assert example.inputs is not None
    assert set(example.targets) == {"train"}
    assert example.targets["train"].device.type == "meta"


def equal(one: Block, other: Block) -> bool:
    names = ("indptr", "source", "target", "edge")
    return one.rows_in == other.rows_in and all(
        getattr(one, name).equal(getattr(other, name)) for name in names
    )


@pytest.mark.parametrize("implementation", ["fused", "pyg", "dgl", "own"])
def test_whoever_cuts_the_same_edges_come_in_the_same_order(implementation: str) -> None:
    """Chunks of which some are padded, nodes and graphs without edges, a chunk without nodes."""
    if implementation == "dgl":
        needs_dgl()
    cuts: list[tuple[ChunkMode, int]] = [("contiguous", 1), ("contiguous", 3), ("clustered", 4)]
    for nodes, pairs, seed in ((50, 90, 0), (50, 90, 1), (50, 90, 2), (6, 0, 0)):
        graph = make_graph(nodes, pairs, seed=seed)
        build = subgraph_builder(graph, implementation)
        for mode, count in cuts:
            for chunk in build_chunks(graph, count, mode, 2).chunks:
                assert equal(build(chunk.nodes), chunk.blocks[0])
        empty = build(torch.full((3,), -1))
        assert (empty.rows_in, empty.rows_out, len(empty.edge)) == (3, 3, 0)


def test_each_layer_gets_edges_of_its_own_in_each_step() -> None:
    graph = make_graph(20, 40, seed=1)
    (chunk,) = build_chunks(graph, 1, "contiguous", 2).chunks
    cuts: list[torch.Tensor] = []

    def build(nodes: torch.Tensor) -> Block:
        cuts.append(nodes)
        return subgraph_builder(graph, "fused")(nodes)

    blocks = replace(chunk, blocks=RebuiltBlocks(build, chunk.nodes, 2)).to("meta").blocks
    first, again = blocks[0], blocks[0]
    assert len(cuts) == 2
    assert first is not again
    assert first.source.device.type == "meta"
    assert len(blocks[:]) == 2
