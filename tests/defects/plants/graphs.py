"""Halo depth and edges."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from typing import Any

import numpy as np
import torch

from gnnhpc.data import graphs as graph_data
from gnnhpc.graphs import chunks
from gnnhpc.graphs.blocks import Block
from gnnhpc.graphs.graph import Graph
from gnnhpc.graphs.rebuilt import RebuiltBlocks
from tests.defects import settings
from tests.defects.defect import planted
from tests.defects.patching import around

KIND = "halo and edges"
defect = functools.partial(planted, kind=KIND)


def kept(block: Block, keep: torch.Tensor) -> Block:
    """The block with only the edges that `keep` names."""
    counts = torch.bincount(block.target[keep], minlength=block.rows_out)
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    return Block(indptr, block.source[keep], block.target[keep], block.edge[keep], block.rows_in)


def change_graph(change: Any) -> None:
    around(graph_data, "load_graph", lambda true, *args: change(true(*args)))


@defect("a halo one hop short", setting=settings.GAT)
def one_hop_short() -> None:
    def shorter(true: Any, edges: Any, own: Any, hops: int) -> Any:
        zones = true(edges, own, hops)
        return [*zones[:-1], zones[-1][:0]]

    def without_strangers(true: Any, edges: Any, nodes: Any, rows_out: int) -> Block:
        block: Block = true(edges, nodes, rows_out)
        return kept(block, block.source >= 0)

    around(chunks, "_zones", shorter)
    around(chunks, "_block", without_strangers)


@defect("halo edges lost in the first layer only", setting=settings.GAT)
def first_layer_edges() -> None:
    """The share of edges kept is counted in the last layer."""

    blocks = itertools.count()

    def fewer(true: Any, edges: Any, nodes: Any, rows_out: int) -> Block:
        block: Block = true(edges, nodes, rows_out)
        if next(blocks) % 2:
            return block
        number = torch.arange(len(block.edge))
        return kept(block, (number % 7 != 0) | (block.edge >= edges.loops))

    around(chunks, "_block", fewer)


@defect("an edge counted twice", setting=settings.GAT)
def doubled_edges() -> None:
    def twice(true: Any, edges: Any, nodes: Any, rows_out: int) -> Block:
        block: Block = true(edges, nodes, rows_out)
        again = torch.arange(len(block.edge)).repeat_interleave(1 + (block.edge % 10 == 0).long())
        return kept(block, again)

    around(chunks, "_block", twice)


@defect("no self-loops", setting=settings.GAT)
def no_loops() -> None:
    def without(true: Any, edges: Any, nodes: Any, rows_out: int) -> Block:
        block: Block = true(edges, nodes, rows_out)
        return kept(block, block.edge < edges.loops)

    around(chunks, "_block", without)


@defect("one edge in fifty lost where all ranks read the graph", setting=settings.GAT)
def lost_edges() -> None:
    def fewer(graph: Any) -> Any:
        keep = torch.arange(graph.edges.shape[1]) % 50 != 0
        return dataclasses.replace(graph, edges=graph.edges[:, keep])

    change_graph(fewer)


@defect("edges turned round where all ranks read the graph", setting=settings.GAT)
def turned() -> None:
    """Every tenth only: this graph has both directions of each edge."""

    def other(graph: Any) -> Any:
        source, target = graph.edges.numpy()
        keep = (source < target) | (source % 3 == 0)
        return dataclasses.replace(graph, edges=graph.edges[:, torch.from_numpy(keep)])

    change_graph(other)


@defect("edges kept from step to step that each layer cuts out again", setting=settings.GAT_REBUILT)
def not_rebuilt() -> None:
    """It learns the same, and its time is that of another run."""
    first: dict[tuple[int, int], Block] = {}

    def kept_once(true: Any, blocks: RebuiltBlocks, index: int) -> Block:
        place = (id(blocks), index)
        if place not in first:
            first[place] = true(blocks, index)
        blocks._given[index] = first[place]
        return first[place]

    around(RebuiltBlocks, "at", kept_once)


@defect("the last node of each chunk left out of the loss", setting=settings.GAT)
def left_out() -> None:
    def without_last(true: Any, graph: Any, own: Any, rows: int | None = None) -> Any:
        targets = true(graph, own, rows)
        labelled = np.flatnonzero(graph.masks["train"][own].numpy())
        if len(labelled):
            targets["train"][labelled[-1]] = -100
        return targets

    around(Graph, "targets", without_last)


@defect("chunks without halo recorded as halo", setting=settings.GAT)
def no_halo() -> None:
    def contiguous(true: Any, graph: Any, count: int, mode: Any, hops: int) -> Any:
        cut = true(graph, count, "contiguous", hops)
        return dataclasses.replace(cut, mode=mode, edges_kept=1.0)

    around(chunks, "build_chunks", contiguous)
