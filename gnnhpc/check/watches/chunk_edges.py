"""Whether a chunk's blocks hold the edges that the mode of cutting promises, of every layer."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from gnnhpc.check.plain.graph import Ids, PlainGraph
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.graphs.blocks import Block, GraphChunk


@dataclass(frozen=True)
class ChunkCounts:
    """What one chunk holds, counted once more."""

    rows: int
    """That enter the first layer, without padding."""
    edges: list[int]
    """Of each layer that uses neighbours, self-loops aside."""


ROWS = 64
"""Output rows of each layer whose edges are compared one by one."""


@dataclass
class ChunkEdges:
    """Looks at every chunk once: the same one is used in every step.

    Of one whose edges are cut out again in each layer, no later look may find the same edges.
    A halo chunk has every edge into each row that a layer computes; the others have those that
    come from the chunk's own nodes. Every row has one self-loop besides.
    """

    counts: dict[int, ChunkCounts] = field(default_factory=dict)
    """By the chunk's number among all."""
    _seen: list[tuple[GraphChunk, list[Block]]] = field(default_factory=list)
    """With what layers were given at the look before."""

    def cause(
        self, graph: PlainGraph, chunk: GraphChunk, experiment: Experiment, place: int, hops: int
    ) -> str | None:
        """What is wrong with chunk number `place` of all; none if nothing is, or it is known."""
        blocks = list(chunk.present_blocks)
        for known, before in self._seen:
            if chunk is known:
                cause = _rebuilt_cause(before, blocks) if experiment.rebuild == "layer" else None
                before[:] = blocks
                return cause
        self._seen.append((chunk, blocks))
        self.counts[place] = _counts(chunk)
        cause = self._own_nodes(graph, chunk, experiment, place)
        if cause is not None:
            return cause
        if len(blocks) != hops:
            return f"{len(blocks)} blocks of edges for {hops} layers that use neighbours"
        return self._blocks(graph, chunk, blocks, experiment)

    @staticmethod
    def _blocks(
        graph: PlainGraph, chunk: GraphChunk, blocks: Sequence[Block], experiment: Experiment
    ) -> str | None:
        nodes = chunk.nodes.cpu().numpy()
        within = None if experiment.chunks == "halo" or experiment.total_chunks == 1 else nodes
        for layer, block in enumerate(blocks):
            if layer and block is blocks[layer - 1]:
                if experiment.rebuild == "layer":
                    return f"layer {layer} of those that use neighbours was given another's edges"
                continue
            cause = _block_cause(graph, block, nodes[: chunk.rows[layer]], within)
            if cause is not None:
                return f"layer {layer} of those that use neighbours {cause}"
        for block in blocks[:1]:
            into = np.diff(block.indptr.cpu().numpy())
            if not np.array_equal(chunk.degree.cpu().numpy()[: len(into)], into):
                return "degrees are not the numbers of edges"
        return None

    @staticmethod
    def _own_nodes(
        graph: PlainGraph, chunk: GraphChunk, experiment: Experiment, place: int
    ) -> str | None:
        own = chunk.nodes[: chunk.own].cpu().numpy()
        real = chunk.nodes.cpu().numpy()
        real = real[real >= 0]
        if len(own) and (own.min() < 0 or own.max() >= graph.nodes):
            return "its own nodes are not all nodes of the graph"
        if len(np.unique(real)) < len(real):
            return "a node is in it twice"
        if experiment.chunks == "contiguous":
            # Node n is of chunk floor(n * chunks / nodes).
            count = experiment.total_chunks
            wanted = np.flatnonzero(np.arange(graph.nodes) * count // graph.nodes == place)
            if not np.array_equal(own, wanted):
                return "its own nodes are not its range of the graph's"
        return None


def in_turn_cause(graph: PlainGraph, chunk: GraphChunk, rule: random.Random) -> str | None:
    """Of a graph that is computed some rows at a time: few of its rows, with all their edges."""
    assert chunk.in_turn is not None
    own = chunk.nodes[: chunk.own].cpu().numpy()
    asked = np.sort(np.array(rule.sample(own.tolist(), min(ROWS, len(own))), dtype=np.int64))
    piece = chunk.in_turn.piece(torch.from_numpy(asked))
    nodes = piece.nodes.cpu().numpy()
    if not np.array_equal(nodes[: piece.own], asked):
        return "its rows are not those that were asked for"
    return _block_cause(graph, piece.blocks[0], nodes, None)


def _rebuilt_cause(before: Sequence[Block], blocks: Sequence[Block]) -> str | None:
    for layer, block in enumerate(blocks):
        if any(block is old for old in before):
            return f"layer {layer} of those that use neighbours was given edges of an earlier step"
    return None


def _counts(chunk: GraphChunk) -> ChunkCounts:
    """Every real row that a layer computes has one self-loop besides its edges."""
    real = chunk.nodes.cpu().numpy() >= 0
    edges = []
    for block in chunk.present_blocks:
        rows = len(block.indptr) - 1
        edges.append(len(block.source) - int(real[:rows].sum()))
    return ChunkCounts(int(real.sum()), edges)


def _block_cause(graph: PlainGraph, block: Block, nodes: Ids, within: Ids | None) -> str | None:
    """`nodes` are the rows that enter the layer; `within` those that edges may come from."""
    indptr, source = block.indptr.cpu().numpy(), block.source.cpu().numpy()
    target, edge = block.target.cpu().numpy(), block.edge.cpu().numpy()
    computed = nodes[: len(indptr) - 1]
    counts = np.diff(indptr)
    if not np.array_equal(target, np.repeat(np.arange(len(counts)), counts)):
        return "has edges whose targets are not their rows"
    real = computed >= 0
    if counts[~real].any():
        return "has edges into padding"
    if within is None:
        missing = graph.degrees(computed[real]) + 1 - counts[real]
        lost, more = int(missing[missing > 0].sum()), int(-missing[missing < 0].sum())
        if lost or more:
            rows = int((missing != 0).sum())
            word = f"lacks {lost} edges" if lost else f"has {more} edges too many"
            return f"{word} into {rows} of the {int(real.sum())} nodes that it computes"
    looked_at = np.flatnonzero(real)
    for row in looked_at[:: max(1, -(-len(looked_at) // ROWS))].tolist():
        part = slice(indptr[row], indptr[row + 1])
        cause = _row_cause(graph, int(computed[row]), nodes[source[part]], edge[part], within)
        if cause is not None:
            return cause
    return None


def _row_cause(
    graph: PlainGraph, node: int, sources: Ids, edges: Ids, within: Ids | None
) -> str | None:
    """Whether the edges into one node are the graph's, its self-loop among them."""
    wanted, numbers = graph.edges_into(node)
    if within is not None:
        kept = np.isin(wanted, within)
        wanted, numbers = wanted[kept], numbers[kept]
    wanted = np.append(wanted, node)
    if not np.array_equal(np.sort(sources), np.sort(wanted)):
        if len(np.unique(sources)) < len(sources):
            return f"has an edge into node {node} twice"
        lost = np.setdiff1d(wanted, sources)
        if len(lost):
            return f"lacks {len(lost)} edges into node {node}, one from node {lost[0]}"
        return f"has edges into node {node} that the graph does not have"
    numbers = np.append(numbers, len(graph.source) + node)
    order, wanted_order = np.argsort(sources), np.argsort(wanted)
    if not np.array_equal(edges[order], numbers[wanted_order]):
        return f"numbers the edges into node {node} wrongly: masks of dropout follow from numbers"
    return None
