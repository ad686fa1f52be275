"""Cuts a graph into chunks of equal shape, one for each micro-batch, with or without a halo.

`contiguous` and `clustered` chunks lose the edges between chunks. `halo` chunks lose none: a chunk
has the neighbours that its layers reach, ordered by hops from its own nodes, so that every layer
that uses neighbours drops the outermost zone and computes only what the next layers need.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from gnnhpc.graphs.blocks import Block, GraphChunk
from gnnhpc.graphs.csr import Ids, offsets, segments
from gnnhpc.graphs.graph import Graph, InEdges, block_weights, weighted_degrees

ChunkMode = Literal["contiguous", "clustered", "halo"]
# METIS is randomised; a fixed seed gives every rank and every run the same parts.
_METIS_SEED = 0


@dataclass(frozen=True)
class ChunkSet:
    """All chunks of a graph, padded to equal rows, with the shares of lost and repeated work."""

    chunks: tuple[GraphChunk, ...]
    mode: ChunkMode
    edges_kept: float
    """The share of directed edges, without self-loops, that the chunk of their target sees."""
    node_redundancy: float
    """The real rows that enter the first layer, over all chunks, for each node of the graph."""
    edge_redundancy: float
    """The edges aggregated over all chunks and layers, without self-loops, for each edge into a
    chunk's own nodes; 1 when nothing is computed twice."""

    @property
    def rows(self) -> tuple[int, ...]:
        """The rows of every chunk: those that enter each layer with a hop, then the output's."""
        return self.chunks[0].rows


def build_chunks(graph: Graph, count: int, mode: ChunkMode, hops: int) -> ChunkSet:
    """Cut `graph` into `count` chunks for a model with `hops` layers that use neighbours.

    One chunk is the full graph in every mode. Raises ValueError for fewer than one chunk and for
    more chunks than nodes.
    """
    nodes = graph.nodes
    if not 1 <= count <= nodes:
        raise ValueError(f"{count} chunks of a graph of {nodes} nodes")
    indptr, source = graph.in_edges.indptr.numpy(), graph.in_edges.source.numpy()
    if mode == "contiguous":
        # Sizes differ by one node at most.
        owner = np.arange(nodes, dtype=np.int64) * count // nodes
    else:
        owner = metis_clusters(indptr, source, count)
    depth = hops if mode == "halo" else 0
    zones = [_zones(indptr, source, np.flatnonzero(owner == n), depth) for n in range(count)]
    capacity = [max(map(len, zone_of_each)) for zone_of_each in zip(*zones, strict=True)]
    chunks = tuple(_chunk(graph, chunk, capacity, mode, hops) for chunk in zones)
    edges = len(source)
    reaching = [[int((b.edge < edges).sum()) for b in chunk.blocks] for chunk in chunks]
    seen = sum(layers[-1] for layers in reaching if layers)
    return ChunkSet(
        chunks,
        mode,
        edges_kept=_ratio(seen, edges) if hops else 1.0,
        node_redundancy=sum(len(zone) for chunk in zones for zone in chunk) / nodes,
        edge_redundancy=_ratio(sum(map(sum, reaching)), hops * seen),
    )


def metis_clusters(indptr: Ids, source: Ids, count: int) -> Ids:
    """Owner of each node when METIS (Karypis & Kumar 1998) cuts the graph into `count` parts.

    The graph comes as its in-edges: node i is reached from `source[indptr[i]:indptr[i + 1]]`,
    sorted. Directions do not matter to METIS: an edge without its reverse is given one.
    A part may stay empty where there are hardly more nodes than parts.
    """
    nodes = len(indptr) - 1
    if count == 1:
        return np.zeros(nodes, dtype=np.int64)
    import pymetis

    indptr, source = _undirected(indptr, source)
    # METIS is usually built with 32-bit integers; other widths cost a copy of every edge.
    _, parts = pymetis.part_graph(
        count,
        pymetis.CSRAdjacency(indptr.astype(np.int32), source.astype(np.int32)),
        options=pymetis.Options(seed=_METIS_SEED),
    )
    return np.asarray(parts, dtype=np.int64)


def _undirected(indptr: Ids, source: Ids) -> tuple[Ids, Ids]:
    nodes = len(indptr) - 1
    target = np.repeat(np.arange(nodes), np.diff(indptr))
    forward, backward = target * nodes + source, np.sort(source * nodes + target)
    if np.array_equal(forward, backward):
        return indptr, source
    both = np.union1d(forward, backward)
    counts = np.bincount(both // nodes, minlength=nodes)
    return np.concatenate(([0], np.cumsum(counts))), both % nodes


def cut_block(
    edges: InEdges, nodes: Tensor, rows_out: int, edge_weight: Tensor | None = None
) -> Block:
    """The edges from `nodes` into the first `rows_out` of them, each row's self-loop last.

    `nodes` are int64 [rows], -1 for padding; `edge_weight` are the weights of all edges.
    """
    indptr, sources, ids = edges.indptr.numpy(), edges.source.numpy(), nodes.numpy()
    local = np.full(len(indptr) - 1, -1, dtype=np.int64)
    rows = np.flatnonzero(ids >= 0)
    local[ids[rows]] = rows
    rows = rows[rows < rows_out]
    places, degree = segments(indptr, ids[rows])
    within = local[sources[places]] >= 0
    if not within.all():
        found, ends = offsets(within.astype(np.int64)), offsets(degree)
        places, degree = places[within], np.diff(found[ends])
    counts = np.zeros(rows_out, dtype=np.int64)
    counts[rows] = degree + 1
    block_indptr = offsets(counts)
    target = np.repeat(np.arange(rows_out), counts)
    source, edge = np.empty_like(target), np.empty_like(target)
    loops = block_indptr[rows + 1] - 1
    others = np.ones(len(target), dtype=bool)
    others[loops] = False
    source[loops], edge[loops] = rows, len(sources) + ids[rows]
    source[others], edge[others] = local[sources[places]], places
    parts = [torch.from_numpy(each) for each in (block_indptr, source, target, edge)]
    weights = block_weights(edge_weight, parts[3])
    return Block(parts[0], parts[1], parts[2], parts[3], len(ids), weights)


def _zones(indptr: Ids, source: Ids, own: Ids, hops: int) -> list[Ids]:
    """The nodes at exactly 0, 1, ..., `hops` in-edges from `own`, each zone ascending."""
    seen = np.zeros(len(indptr) - 1, dtype=bool)
    seen[own] = True
    zones = [own]
    for _ in range(hops):
        places, _ = segments(indptr, zones[-1])
        reached = np.unique(source[places]).astype(np.int64)
        zones.append(reached[~seen[reached]])
        seen[zones[-1]] = True
    return zones


def _chunk(
    graph: Graph, zones: list[Ids], capacity: list[int], mode: ChunkMode, hops: int
) -> GraphChunk:
    """Build one chunk, every zone padded to its capacity."""
    ends = np.cumsum(capacity).tolist()
    nodes = torch.full((ends[-1],), -1)
    for zone, end, size in zip(zones, ends, capacity, strict=True):
        nodes[end - size : end - size + len(zone)] = torch.from_numpy(zone)
    edges, weight = graph.in_edges, graph.edge_weight
    if mode == "halo":
        rows = tuple(ends[::-1])
        blocks = tuple(
            cut_block(edges, nodes[:enter], leave, weight)
            for enter, leave in itertools.pairwise(rows)
        )
        degree = _of_rows(edges.degrees + 1, nodes)
        all_weighted = graph.weighted_degrees
        weighted = None if all_weighted is None else _of_rows(all_weighted, nodes)
    else:
        block = cut_block(edges, nodes, len(nodes), weight)
        rows, blocks = (len(nodes),) * (hops + 1), (block,) * hops
        degree, weighted = block.indptr.diff().clamp(min=1), None
        if block.edge_weight is not None:
            others = block.edge < len(edges.source)
            weighted = weighted_degrees(block.edge_weight[others], block.target[others], len(nodes))
    return GraphChunk(
        nodes=nodes,
        rows=rows,
        blocks=blocks,
        degree=degree,
        targets=graph.targets(torch.from_numpy(zones[0]), rows[-1]),
        own=len(zones[0]),
        weighted_degree=weighted,
    )


def _of_rows(values: Tensor, nodes: Tensor) -> Tensor:
    """The values [nodes of the graph] of these rows; 1 for padding, by which one may divide."""
    return values[nodes].masked_fill(nodes < 0, 1)


def _ratio(part: int, whole: int) -> float:
    """A share or a redundancy; 1 if the whole is 0."""
    return part / whole if whole else 1.0
