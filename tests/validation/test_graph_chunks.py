"""Chunks of a graph have its rows, labels and edges; what differs is found."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch

from gnnhpc.batches.chunk_batches import ChunkBatches
from gnnhpc.graphs.blocks import Block, GraphChunk
from gnnhpc.records.schema import Check
from gnnhpc.validation.graph_chunks import check_chunks
from tests.tools.cells import GAT
from tests.validation.test_kernel_parity import parts_of


def checked(raw: dict[str, Any], damage: Callable[[Any], None] | None = None) -> Check:
    experiment, parts, mesh = parts_of(raw)
    if damage is not None:
        damage(parts.batches)
    (check,) = check_chunks(experiment, parts.batches, None, mesh)
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
    check = checked(GAT | {"chunks": chunks} | changes)
    assert (check.verdict, check.name) == ("ok", "chunks")
    keeps_all = chunks == "halo" or "microbatches" in changes
    assert ("degrees and 100.0% of its edges" in check.detail) is keeps_all


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
    check = checked(GAT | {"chunks": chunks}, without_an_edge)
    assert check.verdict == "invalid"
    assert "edges into node" in check.detail
