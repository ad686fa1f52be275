"""Chunks of a graph have its rows, labels and edges; what differs is found."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

from gnnhpc.batches.batch import BatchPlan
from gnnhpc.batches.chunk_batches import ChunkBatches
from gnnhpc.core.layout import Layout
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.experiment.stage_cut import outline
from gnnhpc.graphs import halo_chunks
from gnnhpc.graphs.blocks import Block, GraphChunk
from gnnhpc.records.schema import Check
from gnnhpc.validation.graph_chunks import check_chunks
from tests.tools.cells import gat

ALONE = Mesh(Layout.parse("seq"), 0, torch.device("cpu"))


def batches_of(experiment: Experiment) -> ChunkBatches:
    return ChunkBatches(BatchPlan(experiment, outline(experiment), ALONE, None))


def check(experiment: Experiment, batches: ChunkBatches) -> Check:
    return check_chunks(experiment, batches, None, ALONE)


@pytest.mark.parametrize("chunks", ["halo", "contiguous", "clustered"])
@pytest.mark.parametrize(
    "changes",
    [{}, {"dtype": "float64"}, {"rebuild": "layer", "model": {"name": "gcn"}}, {"microbatches": 1}],
    ids=str,
)
def test_chunks_of_every_mode_agree(chunks: str, changes: dict[str, Any]) -> None:
    if chunks == "halo" and "rebuild" in changes:
        pytest.skip("chunks that layers rebuild have no halo")
    experiment = gat(chunks=chunks, **changes)
    found = check(experiment, batches_of(experiment))
    assert (found.verdict, found.name) == ("ok", "chunks")
    assert (found.values["edges_kept"] == 1.0) is (chunks == "halo" or "microbatches" in changes)


def test_dense_features_agree() -> None:
    data = {"name": "reddit-shaped", "nodes": 90, "edges": 500, "features": 9, "classes": 3}
    for storage in ("float32", "float16"):
        experiment = gat(data=data | {"storage": storage}, chunks="halo")
        assert check(experiment, batches_of(experiment)).verdict == "ok"


def with_chunk(batches: ChunkBatches, change: Callable[[GraphChunk], GraphChunk]) -> None:
    batches._chunks[0] = change(batches._chunks[0])


def with_block(change: Callable[[Block], Block]) -> Callable[[ChunkBatches], None]:
    def damage(batches: ChunkBatches) -> None:
        def changed(chunk: GraphChunk) -> GraphChunk:
            blocks = list(chunk.present_blocks)
            return dataclasses.replace(chunk, blocks=(change(blocks[0]), *blocks[1:]))

        with_chunk(batches, changed)

    return damage


def without_an_edge(block: Block) -> Block:
    """The first row with a neighbour loses one."""
    row = int((block.indptr.diff() > 1).nonzero()[0])
    place = int(block.indptr[row])
    kept = torch.arange(len(block.edge)) != place
    indptr = block.indptr - (torch.arange(len(block.indptr)) > row).long()
    arrays = (block.source[kept], block.target[kept], block.edge[kept])
    return Block(indptr, *arrays, block.rows_in)


def with_another_source(block: Block) -> Block:
    source = block.source.clone()
    source[0] = (source[0] + 1) % block.rows_in
    return dataclasses.replace(block, source=source)


def with_an_edge_twice(block: Block) -> Block:
    row = int((block.indptr.diff() > 2).nonzero()[0])
    place = int(block.indptr[row])
    source, edge = block.source.clone(), block.edge.clone()
    source[place + 1], edge[place + 1] = source[place], edge[place]
    return dataclasses.replace(block, source=source, edge=edge)


def with_wrong_inputs(batches: ChunkBatches) -> None:
    values = batches._inputs[0].values  # type: ignore[union-attr]
    values[3] += 1e-6


def with_wrong_labels(batches: ChunkBatches) -> None:
    targets = {name: labels.roll(1, 0) for name, labels in batches._chunks[0].targets.items()}
    with_chunk(batches, lambda chunk: dataclasses.replace(chunk, targets=targets))


def with_wrong_share(batches: ChunkBatches) -> None:
    batches.chunkset = dataclasses.replace(batches.chunkset, edges_kept=0.5)


DAMAGES: dict[str, Callable[[ChunkBatches], None]] = {
    "edges into node": with_block(without_an_edge),
    "has edges in layer 0 that are not those of the graph": with_block(with_another_source),
    "layer 0 that are not": with_block(with_an_edge_twice),
    "inputs that are not the features": with_wrong_inputs,
    "train labels that are not": with_wrong_labels,
    "reported are 50.0000%": with_wrong_share,
}


@pytest.mark.parametrize("cause", DAMAGES)
def test_damage_is_found(cause: str) -> None:
    experiment = gat(chunks="halo")
    batches = batches_of(experiment)
    DAMAGES[cause](batches)
    found = check(experiment, batches)
    assert found.verdict == "invalid"
    assert cause in found.detail


def test_a_halo_that_is_a_hop_short_is_found(monkeypatch: pytest.MonkeyPatch) -> None:

    zones = halo_chunks._zones
    monkeypatch.setattr(
        halo_chunks, "_zones", lambda edges, own, hops: [*zones(edges, own, hops)[:-1], own[:0]]
    )
    experiment = gat(chunks="halo")
    found = check(experiment, batches_of(experiment))
    assert found.verdict == "invalid"
    assert "edges into node" in found.detail
