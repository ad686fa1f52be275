"""A chunk of a graph for a custom model's layers, built from lists of edges."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gnnhpc.graphs.blocks import Block, FullGraph, GraphChunk
from gnnhpc.graphs.graph import Graph

Edges = tuple[Tensor, Tensor, Tensor]
"""Sources, targets and numbers in the graph, int64 [E] each, without self-loops."""


def chunk_of_edges(graph: Graph, seeds: Tensor, layers: Sequence[Edges]) -> GraphChunk:
    """The chunk that computes the nodes `seeds`, int64 ascending, without padding.

    `layers` has the edges of each layer that uses neighbours, the last layer's first. The nodes
    that a layer adds follow the others, ascending.
    """
    degree = torch.bincount(graph.edges[1], minlength=graph.nodes) + 1
    place = torch.full((graph.nodes,), -1)
    nodes, rows, blocks = seeds, [len(seeds)], []
    for source, target, number in layers:
        computed = nodes
        nodes = torch.cat((nodes, source[~torch.isin(source, nodes)].unique()))
        place[nodes] = torch.arange(len(nodes))
        blocks.append(_block(graph, place, computed, len(nodes), (source, target, number)))
        rows.append(len(nodes))
    return GraphChunk(
        nodes=nodes,
        rows=tuple(rows[::-1]),
        blocks=tuple(blocks[::-1]),
        degree=degree[nodes],
        targets=graph.targets(seeds),
        own=len(seeds),
        full=FullGraph.of(graph),
        sampled=True,
    )


def _block(graph: Graph, place: Tensor, computed: Tensor, rows_in: int, edges: Edges) -> Block:
    """One layer's edges into the rows of `computed`, by target, each row's self-loop last."""
    source, target, number = edges
    both = torch.stack((place[torch.cat((source, computed))], place[torch.cat((target, computed))]))
    numbers = torch.cat((number, graph.edges.shape[1] + computed))
    order = torch.argsort(both[1], stable=True)
    indptr = torch.zeros(len(computed) + 1, dtype=torch.int64)
    torch.cumsum(torch.bincount(both[1], minlength=len(computed)), 0, out=indptr[1:])
    return Block(indptr, both[0, order], both[1, order], numbers[order], rows_in)
