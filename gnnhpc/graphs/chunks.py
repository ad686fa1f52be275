"""A graph as micro-batches: chunks of equal shape, with or without the edges between them.

`contiguous` and `clustered` cut the graph and lose the edges between chunks. `halo` loses none:
a chunk carries the neighbours that its layers reach, ordered by hops from its own nodes, so that
every attention layer drops the outermost zone and computes only what the next layers need.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from gnnhpc.graphs.partition import Ids, contiguous_ranges, metis_clusters

if TYPE_CHECKING:
    from gnnhpc.data.graphs import Graph
    from gnnhpc.models.outline import LayerOutline

ChunkMode = Literal["contiguous", "clustered", "halo"]
IGNORED = -100
"""The target of a node that counts for nothing: padding, halo, or not in the split."""


@dataclass(frozen=True)
class Transpose:
    """A block's edges by source: what a backward pass walks.

    `indptr` is int64 [rows_in + 1]; `edge` int64 [edges] numbers the block's own edges, and
    `target` int64 [edges] are their local rows of the output.
    """

    indptr: Tensor
    edge: Tensor
    target: Tensor


@dataclass(frozen=True)
class Block:
    """The edges of one attention layer within a chunk, by target, one self-loop a real row.

    `indptr` int64 [rows_out + 1]; `source` and `target` int64 [edges], local rows of the layer's
    input and output; `edge` int64 [edges], ids in the full graph: an edge's number, or E + n for
    the self-loop of node n. Padding rows have no edges. `rows_in` is the rows of the input.
    """

    indptr: Tensor
    source: Tensor
    target: Tensor
    edge: Tensor
    rows_in: int

    @property
    def rows_out(self) -> int:
        return len(self.indptr) - 1

    @cached_property
    def transpose(self) -> Transpose:
        """The same edges by source, sorted once."""
        order = torch.argsort(self.source, stable=True)
        counts = torch.bincount(self.source, minlength=self.rows_in)
        indptr = torch.zeros(self.rows_in + 1, dtype=torch.int64, device=self.source.device)
        torch.cumsum(counts, 0, out=indptr[1:])
        return Transpose(indptr, order, self.target[order])

    def to(self, device: torch.device | str) -> Block:
        return dataclasses.replace(self, **_moved(self, device))


@dataclass(frozen=True)
class FullGraph:
    """Sizes of the whole graph, which dropout masks are drawn for."""

    nodes: int
    edges: int
    features: int
    classes: int


@dataclass(frozen=True)
class GraphChunk:
    """One micro-batch of a graph.

    `nodes` int64 [rows[0]] are global ids, -1 for padding; `rows` the rows that enter each
    attention layer, then those of the output; `blocks` one a layer; `features` [rows[0], F],
    dense or sparse CSR, zero on padding; `entries` int64 [nonzeros] the place of each stored
    feature in the full graph's store (none when dense); `targets` a split's labels, int64
    [rows[-1]], -100 where the node is not this chunk's or not in the split; `own` the nodes
    this chunk owns.
    """

    nodes: Tensor
    rows: tuple[int, ...]
    blocks: tuple[Block, ...]
    features: Tensor
    entries: Tensor | None
    targets: dict[str, Tensor]
    own: int
    full: FullGraph

    def to(self, device: torch.device | str) -> GraphChunk:
        moved = {id(block): block.to(device) for block in self.blocks}
        return dataclasses.replace(
            self,
            blocks=tuple(moved[id(block)] for block in self.blocks),
            targets={split: labels.to(device) for split, labels in self.targets.items()},
            **_moved(self, device),
        )


@dataclass(frozen=True)
class ChunkSet:
    """All chunks of a graph, padded to equal rows, and what cutting cost.

    `edges_kept`: share of the graph's directed edges (self-loops aside) that the output of their
    target's owner sees. `node_redundancy`: real rows that enter the first attention layer, over
    all chunks, for each node of the graph. `edge_redundancy`: edges aggregated over all chunks
    and layers (self-loops aside), for each edge aggregated on behalf of a chunk's own nodes;
    1 when nothing is computed twice.
    """

    chunks: tuple[GraphChunk, ...]
    mode: ChunkMode
    edges_kept: float
    node_redundancy: float
    edge_redundancy: float

    @property
    def rows(self) -> tuple[int, ...]:
        """The rows common to all chunks: entering each attention layer, then the output's."""
        return self.chunks[0].rows


def activation_rows(chunkset: ChunkSet, layers: Sequence[LayerOutline], index: int) -> int:
    """Rows of the activation after layer `index` of the model: one zone less an attention."""
    return chunkset.rows[sum(layer.kind == "attention" for layer in layers[: index + 1])]


def build_chunks(
    graph: Graph,
    count: int,
    mode: ChunkMode,
    hops: int,
    *,
    dtype: torch.dtype = torch.float32,
) -> ChunkSet:
    """Cut `graph` into `count` chunks for a model of `hops` attention layers.

    One chunk is the full graph in every mode. Raises ValueError for fewer than one chunk or
    layer, more chunks than nodes, or edges that are not sorted by (target, source), doubled, or
    self-loops.
    """
    nodes = len(graph.labels)
    if not 1 <= count <= nodes:
        raise ValueError(f"{count} chunks of a graph of {nodes} nodes")
    if hops < 1:
        raise ValueError(f"{hops} attention layers")
    edges = _InEdges.of(graph)
    if mode == "contiguous":
        owner = contiguous_ranges(nodes, count)
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
    chunks = tuple(_chunk(graph, kept, chunk, capacity, hops, dtype) for chunk in zones)
    reaching = [[_real_edges(block, edges) for block in chunk.blocks] for chunk in chunks]
    seen = sum(layers[-1] for layers in reaching)
    return ChunkSet(
        chunks,
        mode,
        edges_kept=_ratio(seen, len(edges.source)),
        node_redundancy=sum(len(zone) for chunk in zones for zone in chunk) / nodes,
        edge_redundancy=_ratio(sum(map(sum, reaching)), hops * seen),
    )


def _real_edges(block: Block, edges: _InEdges) -> int:
    return int((block.edge < edges.loops).sum())


@dataclass(frozen=True)
class _InEdges:
    """Edges by target: those into node i are `source[indptr[i]:indptr[i + 1]]`, `edge` their ids.

    `loops` is the number of the first self-loop: the edges of the full graph.
    """

    indptr: Ids
    source: Ids
    edge: Ids
    loops: int

    @classmethod
    def of(cls, graph: Graph) -> _InEdges:
        nodes = len(graph.labels)
        source, target = graph.edges.numpy()
        if np.any(np.diff(target * nodes + source) <= 0) or np.any(source == target):
            raise ValueError("edges must be sorted by (target, source), single, no self-loops")
        indptr = _offsets(np.bincount(target, minlength=nodes))
        return cls(indptr, source, np.arange(len(source)), len(source))

    def within(self, owner: Ids) -> _InEdges:
        """Only the edges whose two ends have one owner."""
        degree = np.diff(self.indptr)
        kept = owner[self.source] == np.repeat(owner, degree)
        target = np.repeat(np.arange(len(degree)), degree)[kept]
        indptr = _offsets(np.bincount(target, minlength=len(degree)))
        return _InEdges(indptr, self.source[kept], self.edge[kept], self.loops)


def _zones(edges: _InEdges, own: Ids, hops: int) -> list[Ids]:
    """Nodes at exactly 0, 1, ..., `hops` in-edges from `own`, each zone in ascending order."""
    seen = np.zeros(len(edges.indptr) - 1, dtype=bool)
    seen[own] = True
    zones = [own]
    for _ in range(hops):
        places, _ = _segments(edges.indptr, zones[-1])
        reached = np.unique(edges.source[places])
        zones.append(reached[~seen[reached]])
        seen[zones[-1]] = True
    return zones


def _chunk(
    graph: Graph,
    edges: _InEdges,
    zones: list[Ids],
    capacity: list[int],
    hops: int,
    dtype: torch.dtype,
) -> GraphChunk:
    """One chunk, every zone padded to its capacity."""
    ends = np.cumsum(capacity)
    nodes = np.full(ends[-1], -1, dtype=np.int64)
    for zone, end, size in zip(zones, ends, capacity, strict=True):
        nodes[end - size : end - size + len(zone)] = zone
    if len(zones) == 1:
        rows = (int(ends[0]),) * (hops + 1)
        blocks = (_block(edges, nodes, rows[0]),) * hops
    else:
        rows = tuple(int(end) for end in ends[::-1])
        blocks = tuple(_block(edges, nodes[: rows[k]], rows[k + 1]) for k in range(hops))
    features, entries = _feature_rows(graph.features, nodes, dtype)
    return GraphChunk(
        nodes=torch.from_numpy(nodes),
        rows=rows,
        blocks=blocks,
        features=features,
        entries=entries,
        targets=_targets(graph, zones[0], rows[-1]),
        own=len(zones[0]),
        full=FullGraph(
            len(graph.labels), graph.edges.shape[1], graph.features.shape[1], graph.classes
        ),
    )


def _block(edges: _InEdges, nodes: Ids, rows_out: int) -> Block:
    """Edges into the first `rows_out` of `nodes`, each row's self-loop after its other edges."""
    local = np.full(len(edges.indptr), -1, dtype=np.int64)
    rows = np.flatnonzero(nodes >= 0)
    local[nodes[rows]] = rows
    rows = rows[rows < rows_out]
    places, degree = _segments(edges.indptr, nodes[rows])
    counts = np.zeros(rows_out, dtype=np.int64)
    counts[rows] = degree + 1
    indptr = _offsets(counts)
    target = np.repeat(np.arange(rows_out), counts)
    source, edge = np.empty_like(target), np.empty_like(target)
    loops = indptr[rows + 1] - 1
    others = np.ones(len(target), dtype=bool)
    others[loops] = False
    source[loops], edge[loops] = rows, edges.loops + nodes[rows]
    source[others], edge[others] = local[edges.source[places]], edges.edge[places]
    as_tensor = torch.from_numpy
    return Block(
        as_tensor(indptr), as_tensor(source), as_tensor(target), as_tensor(edge), len(nodes)
    )


def _feature_rows(features: Tensor, nodes: Ids, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """The features of `nodes`, zero where -1, and where sparse ones stand in the full store."""
    real = torch.from_numpy(np.flatnonzero(nodes >= 0))
    width = features.shape[1]
    if features.layout != torch.sparse_csr:
        dense = torch.zeros(len(nodes), width, dtype=dtype)
        dense[real] = features[torch.from_numpy(nodes)[real]].to(dtype)
        return dense, None
    indptr = features.crow_indices().numpy()
    places, lengths = _segments(indptr, nodes[real.numpy()])
    counts = np.zeros(len(nodes), dtype=np.int64)
    counts[real.numpy()] = lengths
    entries = torch.from_numpy(places)
    rows = torch.sparse_csr_tensor(
        torch.from_numpy(_offsets(counts)),
        features.col_indices()[entries].to(torch.int64),
        features.values()[entries].to(dtype),
        size=(len(nodes), width),
        check_invariants=False,
    )
    return rows, entries


def _targets(graph: Graph, own: Ids, rows: int) -> dict[str, Tensor]:
    nodes = torch.from_numpy(own)
    targets = {}
    for split, mask in graph.masks.items():
        labels = torch.full((rows,), IGNORED, dtype=torch.int64)
        labels[: len(own)] = torch.where(mask[nodes], graph.labels[nodes], IGNORED)
        targets[split] = labels
    return targets


def _segments(indptr: Ids, rows: Ids) -> tuple[Ids, Ids]:
    """Places of all entries of `rows` in a CSR store, one row after the other, and the lengths."""
    lengths = indptr[rows + 1] - indptr[rows]
    starts = _offsets(lengths)
    within = np.arange(starts[-1]) - np.repeat(starts[:-1], lengths)
    return np.repeat(indptr[rows], lengths) + within, lengths


def _offsets(counts: Ids) -> Ids:
    return np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(counts, dtype=np.int64)))


def _ratio(part: int, whole: int) -> float:
    """A share or redundancy; nothing of nothing is all of it."""
    return part / whole if whole else 1.0


def _moved(holder: Block | GraphChunk, device: torch.device | str) -> dict[str, Any]:
    fields = {field.name: getattr(holder, field.name) for field in dataclasses.fields(holder)}
    return {name: x.to(device) for name, x in fields.items() if isinstance(x, Tensor)}
