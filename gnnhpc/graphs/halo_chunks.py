"""Cuts a graph into chunks of equal shape, one for each micro-batch, with or without a halo.

`contiguous` and `clustered` chunks lose the edges between chunks. `halo` chunks lose none: a chunk
has the neighbours that its layers reach, ordered by hops from its own nodes, so that every layer
that uses neighbours drops the outermost zone and computes only what the next layers need.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from gnnhpc.graphs.blocks import Block, FullGraph, GraphChunk
from gnnhpc.graphs.csr import Ids, offsets, segments
from gnnhpc.graphs.graph import Graph, block_weights, weighted_degrees

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

    One chunk is the full graph in every mode. Raises ValueError for fewer than one chunk, for more
    chunks than nodes, and for edges that are unsorted, doubled or self-loops.
    """
    nodes = graph.nodes
    if not 1 <= count <= nodes:
        raise ValueError(f"{count} chunks of a graph of {nodes} nodes")
    edges = _InEdges.of(graph.edges, nodes)
    if mode == "contiguous":
        # Sizes differ by one node at most.
        owner = np.arange(nodes, dtype=np.int64) * count // nodes
    else:
        owner = metis_clusters(edges.indptr, edges.source, count)
    if mode == "halo":
        zones = [_zones(edges, np.flatnonzero(owner == chunk), hops) for chunk in range(count)]
        kept = edges
    else:
        zones = [[np.flatnonzero(owner == chunk)] for chunk in range(count)]
        kept = edges.within(owner)
    depth = len(zones[0])
    capacity = [max(len(chunk[zone]) for chunk in zones) for zone in range(depth)]
    chunks = tuple(_chunk(graph, kept, chunk, capacity, hops) for chunk in zones)
    if graph.edge_weight is not None:
        weights = graph.edge_weight[torch.from_numpy(kept.edge)]
        weighted = weighted_degrees(weights, torch.from_numpy(kept.indptr))
        assert weighted is not None
        chunks = tuple(
            replace(chunk, weighted_degree=_of_rows(weighted, chunk.nodes)) for chunk in chunks
        )
    reaching = [[int((b.edge < edges.loops).sum()) for b in chunk.blocks] for chunk in chunks]
    seen = sum(layers[-1] for layers in reaching if layers)
    return ChunkSet(
        chunks,
        mode,
        edges_kept=_ratio(seen, len(edges.source)) if hops else 1.0,
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


def block_builder(
    edges: Tensor, nodes: int, edge_weight: Tensor | None = None
) -> Callable[[Tensor], Block]:
    """Return a function from nodes, int64 [rows] with -1 for padding, to the block among them.

    `edges` are those of a graph, int64 [2, E]. Raises ValueError as `build_chunks` does.
    """
    found = _InEdges.of(edges, nodes)
    return lambda rows: _block(found, rows.numpy(), len(rows), edge_weight)


@dataclass(frozen=True)
class _InEdges:
    """Edges by target: `source[indptr[i]:indptr[i + 1]]` lead into node i; `edge` are their ids.

    `loops` is the number of the first self-loop, which is the number of edges in the full graph.
    """

    indptr: Ids
    source: Ids
    edge: Ids
    loops: int

    @classmethod
    def of(cls, edges: Tensor, nodes: int) -> _InEdges:
        source, target = edges.numpy()
        if np.any(np.diff(target * nodes + source) <= 0) or np.any(source == target):
            raise ValueError("edges must be sorted by (target, source), single, no self-loops")
        indptr = offsets(np.bincount(target, minlength=nodes))
        return cls(indptr, source, np.arange(len(source)), len(source))

    def within(self, owner: Ids) -> _InEdges:
        """The edges whose two ends have one owner."""
        degree = np.diff(self.indptr)
        kept = owner[self.source] == np.repeat(owner, degree)
        target = np.repeat(np.arange(len(degree)), degree)[kept]
        indptr = offsets(np.bincount(target, minlength=len(degree)))
        return _InEdges(indptr, self.source[kept], self.edge[kept], self.loops)


def _zones(edges: _InEdges, own: Ids, hops: int) -> list[Ids]:
    """The nodes at exactly 0, 1, ..., `hops` in-edges from `own`, each zone ascending."""
    seen = np.zeros(len(edges.indptr) - 1, dtype=bool)
    seen[own] = True
    zones = [own]
    for _ in range(hops):
        places, _ = segments(edges.indptr, zones[-1])
        reached = np.unique(edges.source[places])
        zones.append(reached[~seen[reached]])
        seen[zones[-1]] = True
    return zones


def _chunk(
    graph: Graph, edges: _InEdges, zones: list[Ids], capacity: list[int], hops: int
) -> GraphChunk:
    """Build one chunk, every zone padded to its capacity."""
    ends = np.cumsum(capacity)
    nodes = np.full(ends[-1], -1, dtype=np.int64)
    for zone, end, size in zip(zones, ends, capacity, strict=True):
        nodes[end - size : end - size + len(zone)] = zone
    if len(zones) == 1:
        rows = (int(ends[0]),) * (hops + 1)
        blocks = (_block(edges, nodes, rows[0], graph.edge_weight),) * hops
    else:
        rows = tuple(int(end) for end in ends[::-1])
        blocks = tuple(
            _block(edges, nodes[: rows[k]], rows[k + 1], graph.edge_weight) for k in range(hops)
        )
    return GraphChunk(
        nodes=torch.from_numpy(nodes),
        rows=rows,
        blocks=blocks,
        degree=_of_rows(torch.from_numpy(np.diff(edges.indptr) + 1), torch.from_numpy(nodes)),
        targets=graph.targets(torch.from_numpy(zones[0]), rows[-1]),
        own=len(zones[0]),
        full=FullGraph.of(graph),
    )


def _of_rows(values: Tensor, nodes: Tensor) -> Tensor:
    """The values [nodes of the graph] of these rows; 1 for padding, by which one may divide."""
    return values[nodes].masked_fill(nodes < 0, 1)


def _block(edges: _InEdges, nodes: Ids, rows_out: int, edge_weight: Tensor | None) -> Block:
    """The edges from `nodes` into the first `rows_out` of them, each row's self-loop last."""
    local = np.full(len(edges.indptr), -1, dtype=np.int64)
    rows = np.flatnonzero(nodes >= 0)
    local[nodes[rows]] = rows
    rows = rows[rows < rows_out]
    places, degree = segments(edges.indptr, nodes[rows])
    within = local[edges.source[places]] >= 0
    if not within.all():
        found, ends = offsets(within.astype(np.int64)), offsets(degree)
        places, degree = places[within], np.diff(found[ends])
    counts = np.zeros(rows_out, dtype=np.int64)
    counts[rows] = degree + 1
    indptr = offsets(counts)
    target = np.repeat(np.arange(rows_out), counts)
    source, edge = np.empty_like(target), np.empty_like(target)
    loops = indptr[rows + 1] - 1
    others = np.ones(len(target), dtype=bool)
    others[loops] = False
    source[loops], edge[loops] = rows, edges.loops + nodes[rows]
    source[others], edge[others] = local[edges.source[places]], edges.edge[places]
    parts = [torch.from_numpy(each) for each in (indptr, source, target, edge)]
    weights = block_weights(edge_weight, parts[3])
    return Block(parts[0], parts[1], parts[2], parts[3], len(nodes), weights)


def _ratio(part: int, whole: int) -> float:
    """A share or a redundancy; 1 if the whole is 0."""
    return part / whole if whole else 1.0
