"""Chunks of a graph have its rows, labels and edges; what differs is found."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import pytest
import torch

from gnnhpc.batches.batch import BatchPlan
from gnnhpc.batches.chunk_batches import ChunkBatches
from gnnhpc.core.layout import Layout
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.experiment.stage_cut import outline
from gnnhpc.graphs.blocks import Block, GraphChunk
from gnnhpc.records.schema import Check
from gnnhpc.validation.trained_samples import check_chunks
from tests.tools.cells import gat

ALONE = Mesh(Layout.parse("seq"), 0, torch.device("cpu"))


def batches_of(experiment: Experiment) -> ChunkBatches:
    return ChunkBatches(BatchPlan(experiment, outline(experiment), ALONE, None))


def check(experiment: Experiment, batches: ChunkBatches) -> Check:
    (check,) = check_chunks(experiment, batches, None, ALONE)
    return check


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


def without_an_edge(batches: ChunkBatches) -> None:
    """The first row with a neighbour loses one in the first layer."""
    chunks = cast(list[GraphChunk], batches._batch.chunks)
    chunk = chunks[0]
    first, *others = chunk.present_blocks
    row = int((first.indptr.diff() > 1).nonzero()[0])
    kept = torch.arange(len(first.edge)) != int(first.indptr[row])
    indptr = first.indptr - (torch.arange(len(first.indptr)) > row).long()
    arrays = (first.source[kept], first.target[kept], first.edge[kept])
    block = Block(indptr, *arrays, first.rows_in)
    chunks[0] = dataclasses.replace(chunk, blocks=(block, *others))


@pytest.mark.parametrize("chunks", ["halo", "contiguous"])
def test_a_lost_edge_is_found(chunks: str) -> None:
    experiment = gat(chunks=chunks)
    batches = batches_of(experiment)
    without_an_edge(batches)
    found = check(experiment, batches)
    assert found.verdict == "invalid"
    assert "edges into node" in found.detail
