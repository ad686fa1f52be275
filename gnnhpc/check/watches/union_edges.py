"""Whether a union of small graphs holds all their nodes and edges, and pools each by itself."""

from __future__ import annotations

import random

import numpy as np

from gnnhpc.check.plain.graph_set import Ids, PlainGraphSet
from gnnhpc.graphs.blocks import Block, GraphChunk

GRAPHS = 16
"""Of a micro-batch, whose edges are compared one by one; of the others they are counted."""


def union_cause(
    graphs: PlainGraphSet, chunk: GraphChunk, wanted: Ids, hops: int, rule: random.Random
) -> str | None:
    """What is wrong with one micro-batch of the graphs `wanted`; none if nothing is."""
    of_graph = [graphs.nodes_of(graph) for graph in wanted.tolist()]
    nodes = np.concatenate([*of_graph, np.empty(0, dtype=np.int64)])
    counts = np.array([len(each) for each in of_graph], dtype=np.int64)
    cause = _rows_cause(chunk, nodes, len(wanted), hops) or _pooling_cause(chunk.pooling, counts)
    if cause is not None:
        return cause
    looked_at = rule.sample(range(len(wanted)), min(GRAPHS, len(wanted)))
    first = np.concatenate(([0], np.cumsum(counts)))
    blocks = list(chunk.present_blocks)
    for layer, block in enumerate(blocks):
        if layer and block is blocks[layer - 1]:
            continue
        cause = _edges_cause(graphs, block, nodes, of_graph, first, looked_at)
        if cause is not None:
            return f"layer {layer} of those that use neighbours {cause}"
    for block in blocks[:1]:
        if not np.array_equal(chunk.degree.cpu().numpy(), np.diff(block.indptr.cpu().numpy())):
            return "degrees are not the numbers of edges"
    return None


def _rows_cause(chunk: GraphChunk, nodes: Ids, graphs: int, hops: int) -> str | None:
    if not np.array_equal(chunk.nodes.cpu().numpy(), nodes):
        return "its rows are not the nodes of its graphs, one graph after another"
    if chunk.rows != (len(nodes),) * (hops + 1) + (graphs,):
        return f"it has rows {list(chunk.rows)} for {len(nodes)} nodes of {graphs} graphs"
    if len(chunk.present_blocks) != hops:
        blocks = len(chunk.present_blocks)
        return f"{blocks} blocks of edges for {hops} layers that use neighbours"
    return None


def _pooling_cause(pooling: Block | None, counts: Ids) -> str | None:
    if pooling is None:
        return "it does not say which nodes are of one graph"
    rows = np.arange(counts.sum())
    told = tuple(part.cpu().numpy() for part in (pooling.indptr, pooling.source, pooling.target))
    wanted = (
        np.concatenate(([0], np.cumsum(counts))),
        rows,
        np.repeat(np.arange(len(counts)), counts),
    )
    if not all(np.array_equal(a, b) for a, b in zip(told, wanted, strict=True)):
        return "it pools other nodes than those of each graph"
    return None


def _edges_cause(
    graphs: PlainGraphSet,
    block: Block,
    nodes: Ids,
    of_graph: list[Ids],
    first: Ids,
    looked_at: list[int],
) -> str | None:
    """All rows' numbers of edges; of the graphs `looked_at` each edge with its number."""
    indptr, source = block.indptr.cpu().numpy(), block.source.cpu().numpy()
    target, edge = block.target.cpu().numpy(), block.edge.cpu().numpy()
    counts = np.diff(indptr)
    if len(counts) != len(nodes) or block.rows_in != len(nodes):
        return f"has {block.rows_in} rows in and {len(counts)} out for {len(nodes)} nodes"
    if not np.array_equal(target, np.repeat(np.arange(len(counts)), counts)):
        return "has edges whose targets are not their rows"
    for place in looked_at:
        rows = slice(int(first[place]), int(first[place + 1]))
        part = slice(int(indptr[rows.start]), int(indptr[rows.stop]))
        ends = source[part]
        if len(ends) and (ends.min() < rows.start or ends.max() >= rows.stop):
            return f"has edges between graph number {place} of the micro-batch and another"
        own = of_graph[place]
        known_source, known_target, number = graphs.edges_into(own)
        # The edge of a node to itself has a number after all others'.
        wanted = np.stack(
            (
                np.concatenate((known_source, own)),
                np.concatenate((known_target, own)),
                np.concatenate((number, len(graphs.source) + own)),
            )
        )
        found = np.stack((nodes[ends], nodes[target[part]], edge[part]))
        if not np.array_equal(_ordered(found), _ordered(wanted)):
            return _difference(found, wanted, place)
    lost = _edges_of(graphs, of_graph) + len(nodes) - len(source)
    if lost:
        return f"has {len(source)} edges, its graphs {len(source) + lost} with the self-loops"
    return None


def _edges_of(graphs: PlainGraphSet, of_graph: list[Ids]) -> int:
    starts = np.array([own[0] for own in of_graph], dtype=np.int64)
    ends = np.array([own[-1] for own in of_graph], dtype=np.int64)
    found = np.searchsorted(graphs.target, ends, "right")
    return int((found - np.searchsorted(graphs.target, starts, "left")).sum())


def _ordered(edges: Ids) -> Ids:
    return edges[:, np.lexsort(edges)]


def _difference(found: Ids, wanted: Ids, place: int) -> str:
    which = f"of graph number {place} of the micro-batch"
    if found.shape != wanted.shape:
        return f"has {found.shape[1]} edges {which}, not {wanted.shape[1]} with its self-loops"
    if np.array_equal(_ordered(found[:2]), _ordered(wanted[:2])):
        return f"numbers the edges {which} wrongly"
    return f"has other edges {which}"
