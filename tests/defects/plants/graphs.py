"""Edges, halos and degrees of a graph that is cut, and graphs that are read out."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from typing import Any

import torch

from gnnhpc.graphs import halo_chunks
from gnnhpc.graphs.blocks import Block, GraphChunk
from gnnhpc.graphs.graph_set import DisjointUnions
from tests.defects import cells
from tests.defects.defect import around, planted

defect = functools.partial(
    planted, kind="graphs", mechanism="engine-parity", words="outputs: layer0."
)


def kept(block: Block, keep: torch.Tensor) -> Block:
    """The block with the edges that `keep` names alone."""
    counts = torch.bincount(block.target[keep], minlength=block.rows_out)
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    return Block(indptr, block.source[keep], block.target[keep], block.edge[keep], block.rows_in)


@defect(cell=cells.GAT, at=(halo_chunks, "_zones"))
def a_halo_one_hop_short(original: Any, *args: Any) -> Any:
    zones = original(*args)
    return [*zones[:-1], zones[-1][:0]]


@defect(cell=cells.GAT)
def edges_of_a_halo_lost_in_the_first_layer() -> None:
    blocks = itertools.count()

    def fewer(original: Any, edges: Any, *args: Any) -> Block:
        block: Block = original(edges, *args)
        if next(blocks) % 2:
            return block
        number = torch.arange(len(block.edge))
        return kept(block, (number % 7 != 0) | (block.edge >= len(edges.source)))

    around(halo_chunks, "cut_block", fewer)


@defect(cell=cells.GCN, at=(halo_chunks, "_chunk"))
def degrees_of_the_chunk_for_those_of_the_graph(original: Any, *args: Any) -> GraphChunk:
    chunk: GraphChunk = original(*args)
    degree, first = chunk.degree.clone(), chunk.blocks[0]
    degree[: first.rows_out] = first.indptr.diff()
    degree[first.rows_out :] = 1
    return dataclasses.replace(chunk, degree=degree)


@defect(cell=cells.GRAPHS, words="outputs: readout.pooling", at=(DisjointUnions, "of"))
def nodes_pooled_into_the_graph_beside_their_own(original: Any, *args: Any) -> GraphChunk:
    """Each graph but the last takes the first node of the next one."""
    chunk: GraphChunk = original(*args)
    pooling = chunk.pooling_block
    starts = pooling.indptr.clone()
    starts[1:-1] += 1
    target = torch.repeat_interleave(torch.arange(pooling.rows_out), starts.diff())
    pooling = dataclasses.replace(pooling, indptr=starts, target=target)
    return dataclasses.replace(chunk, pooling=pooling)
