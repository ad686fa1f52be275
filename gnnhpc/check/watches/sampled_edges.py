"""Whether a sampled mini-batch holds edges of the graph, as many as its fan-outs allow, and those
that seed, step, layer and node draw."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from gnnhpc.check.plain.draws import PlainDraw
from gnnhpc.check.plain.graph import Ids, PlainGraph
from gnnhpc.graphs.blocks import Block, GraphChunk
from gnnhpc.spec.experiment import Experiment

ROWS = 16
"""Of each layer, whose edges are compared one by one and drawn again."""


def sampled_cause(
    graph: PlainGraph, chunk: GraphChunk, experiment: Experiment, step: int, rule: random.Random
) -> str | None:
    """What is wrong with one micro-batch; none if nothing is."""
    sampling = experiment.sampling
    assert sampling is not None
    nodes = chunk.nodes.cpu().numpy()
    if len(nodes) and (nodes.min() < 0 or nodes.max() >= graph.nodes):
        return "its rows are not all nodes of the graph"
    if len(np.unique(nodes)) < len(nodes):
        return "a node has two rows"
    blocks = list(chunk.present_blocks)
    if len(blocks) != len(sampling.fanouts):
        return f"{len(blocks)} blocks of edges for {len(sampling.fanouts)} fan-outs"
    for layer, block in enumerate(blocks):
        hop = len(blocks) - 1 - layer
        if (block.rows_in, block.rows_out) != chunk.rows[layer : layer + 2]:
            return f"layer {layer} has other rows than planned"
        fanouts = np.full(block.rows_out, sampling.fanouts[hop])
        if not sampling.trim:
            fanouts = _untrimmed(block, chunk.own, sampling.fanouts)
        elif sampling.semantics == "once":
            # A node keeps what was drawn when it was first reached.
            reached = np.diff(chunk.rows[:layer:-1], prepend=0)
            fanouts = np.repeat(sampling.fanouts[: hop + 1], reached)
        number = hop if sampling.semantics == "resample" else 0
        draw = PlainDraw(sampling.fanouts[hop], experiment.seed, step, number, sampling.replace)
        ours = draw if sampling.sampler == "ours" else None
        cause = _counts_cause(graph, block, nodes, fanouts, replace=sampling.replace)
        cause = cause or _rows_cause(graph, block, nodes, ours, rule, replace=sampling.replace)
        if cause is not None:
            return f"layer {layer} of those that use neighbours {cause}"
    return None


def _untrimmed(block: Block, seeds: int, fanouts: Sequence[int]) -> Ids:
    """Of rows in the order in which they were reached, how many edges were drawn at most: as many
    as in the hop in which they were, and none for those that the last one reached."""
    found = np.zeros(block.rows_out, dtype=np.int64)
    counts, source = np.diff(block.indptr.cpu().numpy()), block.source.cpu().numpy()
    first, reached = 0, seeds
    for fanout in fanouts:
        found[first:reached] = fanout
        ahead = source[: int(counts[:reached].sum())]
        first, reached = reached, max(reached, int(ahead.max(initial=-1)) + 1)
    return found


def _counts_cause(
    graph: PlainGraph, block: Block, nodes: Ids, fanouts: Ids, *, replace: bool
) -> str | None:
    """Of all rows; `fanouts` [rows] are the most neighbours of each."""
    counts, source = np.diff(block.indptr.cpu().numpy()), block.source.cpu().numpy()
    if not np.array_equal(block.target.cpu().numpy(), np.repeat(np.arange(len(counts)), counts)):
        return "has edges whose targets are not their rows"
    if len(source) and (source.min() < 0 or source.max() >= block.rows_in):
        return "has edges from rows that do not enter it"
    computed = nodes[: len(counts)]
    degrees = graph.degrees(computed)
    wanted = np.where(degrees > 0, fanouts, 0) if replace else np.minimum(degrees, fanouts)
    wrong = np.flatnonzero(counts != wanted + 1)
    if len(wrong):
        row = wrong[0]
        return (
            f"has {counts[row] - 1} edges into node {computed[row]}, where {wanted[row]} of its "
            f"{degrees[row]} are to be drawn ({len(wrong)} such nodes)"
        )
    return None


def _rows_cause(
    graph: PlainGraph,
    block: Block,
    nodes: Ids,
    draw: PlainDraw | None,
    rule: random.Random,
    *,
    replace: bool,
) -> str | None:
    """Of few rows, edge by edge; `draw` draws them again where that can be done."""
    indptr, source = block.indptr.cpu().numpy(), block.source.cpu().numpy()
    edge, rows_out = block.edge.cpu().numpy(), len(indptr) - 1
    rows = sorted(rule.sample(range(rows_out), min(ROWS, rows_out)))
    asked = nodes[rows]
    drawn: list[list[int]] | list[None] = [None] * len(rows)
    if draw is not None:
        drawn = draw.places(asked.tolist(), graph.degrees(asked).tolist())
    for row, node, places in zip(rows, asked.tolist(), drawn, strict=True):
        part = slice(indptr[row], indptr[row + 1])
        cause = _row_cause(graph, node, nodes[source[part]], edge[part], places)
        if cause is not None:
            return cause
        if not replace and len(np.unique(edge[part])) < part.stop - part.start:
            return f"has an edge into node {node} twice"
    return None


def _row_cause(
    graph: PlainGraph, node: int, sources: Ids, edges: Ids, drawn: list[int] | None
) -> str | None:
    """Whether one row's edges are the graph's, the self-loop last, and those that are drawn."""
    if (sources[-1], edges[-1]) != (node, len(graph.source) + node):
        return f"lacks the edge of node {node} to itself"
    known, numbers = graph.edges_into(node)
    places = np.searchsorted(numbers, edges[:-1])
    if not np.isin(edges[:-1], numbers).all():
        return f"has edges into node {node} that the graph does not have"
    if not np.array_equal(known[places], sources[:-1]):
        return f"numbers the edges into node {node} wrongly: rows and numbers are of other edges"
    if drawn is not None and sorted(places.tolist()) != sorted(drawn):
        return f"has other neighbours of node {node} than its seed, step and layer draw"
    return None
