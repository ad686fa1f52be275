"""A mini-batch made anew from the edges that a library drew, for a model that is its own twin."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gnnhpc.check.capture import Ids
from gnnhpc.graphs.blocks import Block, FullGraph, GraphChunk
from gnnhpc.graphs.graph import IGNORED, Graph


def drawn_chunk(graph: Graph, seeds: Ids, layers: Sequence[tuple[Ids, Ids, Ids]]) -> GraphChunk:
    """The chunk of these nodes, ascending; `layers` as `SeenEdges` has them.

    Nodes that a layer reaches for the first time follow those before them, ascending.
    """
    degree = torch.bincount(graph.edges[1], minlength=graph.nodes) + 1
    nodes = torch.from_numpy(seeds)
    place = torch.full((graph.nodes,), -1)
    rows, blocks = [len(nodes)], []
    for source, target, number in reversed(layers):
        computed, sources = nodes, torch.from_numpy(source)
        nodes = torch.cat((nodes, sources[~torch.isin(sources, nodes)].unique()))
        place[nodes] = torch.arange(len(nodes))
        into = torch.from_numpy(target)
        blocks.append(_block(graph, place, computed, sources, into, torch.from_numpy(number)))
        rows.append(len(nodes))
    own = nodes[: len(seeds)]
    return GraphChunk(
        nodes=nodes,
        rows=tuple(rows[::-1]),
        blocks=tuple(blocks[::-1]),
        degree=degree[nodes],
        targets={
            split: graph.labels[own].where(mask[own], torch.tensor(IGNORED))
            for split, mask in graph.masks.items()
        },
        own=len(seeds),
        full=FullGraph.of(graph),
        sampled=True,
    )


def _block(
    graph: Graph, place: Tensor, computed: Tensor, source: Tensor, target: Tensor, number: Tensor
) -> Block:
    """One layer's edges by the rows of its output, `computed`, the edge of each to itself last."""
    rows_in = int(place.max()) + 1
    edges = torch.stack(
        (place[torch.cat((source, computed))], place[torch.cat((target, computed))])
    )
    numbers = torch.cat((number, graph.edges.shape[1] + computed))
    order = torch.argsort(edges[1], stable=True)
    indptr = torch.zeros(len(computed) + 1, dtype=torch.int64)
    torch.cumsum(torch.bincount(edges[1], minlength=len(computed)), 0, out=indptr[1:])
    return Block(indptr, edges[0, order], edges[1, order], numbers[order], rows_in)
