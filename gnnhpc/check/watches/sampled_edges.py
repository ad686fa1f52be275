"""Whether a sampled mini-batch holds edges of the graph, as many as its fan-outs allow, and those
that seed, step, layer and node draw."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from gnnhpc.check.plain.draws import PlainDraw
from gnnhpc.check.plain.graph import Ids, PlainGraph
from gnnhpc.check.watches.edges_by_source import by_source_cause
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.graphs.blocks import Block, GraphChunk

ROWS = 16
"""Of each layer, whose edges are drawn again."""
INPUTS = 1_024
"""Rows of the input that have no edges, whose degrees are looked up: in a large graph each takes a
while."""


def sampled_cause(
    graph: PlainGraph, chunk: GraphChunk, experiment: Experiment, step: int, rule: random.Random
) -> str | None:
    """What is wrong with one micro-batch; none if nothing is."""
    sampling = experiment.sampling
    assert sampling is not None
    nodes, blocks = chunk.nodes.cpu().numpy(), list(chunk.present_blocks)
    cause = _rows_in_all_cause(graph, chunk, nodes)
    if cause is not None:
        return cause
    if len(blocks) != len(sampling.fanouts):
        return f"{len(blocks)} blocks of edges for {len(sampling.fanouts)} fan-outs"
    degrees = graph.degrees(nodes[: max(chunk.rows[1:])])
    cause = _degrees_cause(graph, nodes, chunk.degree.cpu().numpy(), degrees, rule)
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
        found = _counts_cause(block, nodes, degrees, fanouts, replace=sampling.replace)
        found = found or _edges_cause(graph, block, nodes) or by_source_cause(block)
        found = found or _rows_cause(graph, block, nodes, ours, rule, replace=sampling.replace)
        if found is not None:
            return f"layer {layer} of those that use neighbours {found}"
    return cause


def _rows_in_all_cause(graph: PlainGraph, chunk: GraphChunk, nodes: Ids) -> str | None:
    """Whether the rows are nodes, none twice."""
    # Sorted by hand: numpy's own unique hashes, which takes many times as long.
    ordered = np.sort(nodes)
    if len(nodes) and (ordered[0] < 0 or ordered[-1] >= graph.nodes):
        return "its rows are not all nodes of the graph"
    if (ordered[1:] == ordered[:-1]).any():
        return "a node has two rows"
    if not chunk.rows[0] == len(nodes) == len(chunk.degree):
        return f"{len(nodes)} nodes and {len(chunk.degree)} degrees for {chunk.rows[0]} rows"
    return None


def _degrees_cause(
    graph: PlainGraph, nodes: Ids, told: Ids, degrees: Ids, rule: random.Random
) -> str | None:
    """Of all rows that are computed, whose `degrees` are known, and of few of the others."""
    known = len(degrees)
    drawn = rule.sample(range(known, len(nodes)), min(INPUTS, len(nodes) - known))
    others = np.sort(np.array(drawn, dtype=np.int64))
    rows = np.concatenate([np.arange(known), others])
    wanted = np.concatenate([degrees, graph.degrees(nodes[others])]) + 1
    wrong = np.flatnonzero(told[rows] != wanted)
    if not len(wrong):
        return None
    first = wrong[0]
    return (
        f"the degree of node {nodes[rows[first]]} is told as {told[rows[first]]}, with the edge "
        f"to itself it is {wanted[first]} ({len(wrong)} such nodes)"
    )


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
    block: Block, nodes: Ids, degrees: Ids, fanouts: Ids, *, replace: bool
) -> str | None:
    """Of all rows; `fanouts` [rows] are the most neighbours of each."""
    counts, source = np.diff(block.indptr.cpu().numpy()), block.source.cpu().numpy()
    if not np.array_equal(block.target.cpu().numpy(), np.repeat(np.arange(len(counts)), counts)):
        return "has edges whose targets are not their rows"
    if len(source) and (source.min() < 0 or source.max() >= block.rows_in):
        return "has edges from rows that do not enter it"
    computed, degrees = nodes[: len(counts)], degrees[: len(counts)]
    wanted = np.where(degrees > 0, fanouts, 0) if replace else np.minimum(degrees, fanouts)
    wrong = np.flatnonzero(counts != wanted + 1)
    if len(wrong):
        row = wrong[0]
        return (
            f"has {counts[row] - 1} edges into node {computed[row]}, where {wanted[row]} of its "
            f"{degrees[row]} are to be drawn ({len(wrong)} such nodes)"
        )
    return None


def _edges_cause(graph: PlainGraph, block: Block, nodes: Ids) -> str | None:
    """Of all edges: whether the graph has them; each row's last is the node's to itself."""
    indptr, numbers = block.indptr.cpu().numpy(), block.edge.cpu().numpy()
    sources, targets = (nodes[part.cpu().numpy()] for part in (block.source, block.target))
    own = np.zeros(len(numbers), dtype=np.bool_)
    own[indptr[1:] - 1] = True
    apart = (sources != targets) | (numbers != len(graph.source) + targets)
    if len(wrong := np.flatnonzero(own & apart)):
        return f"lacks the edge of node {targets[wrong[0]]} to itself"
    sources, targets, numbers = sources[~own], targets[~own], numbers[~own]
    has = graph.has(numbers)
    has[has] = graph.target[numbers[has]] == targets[has]
    if not has.all():
        return f"has edges into node {targets[~has][0]} that the graph does not have"
    if len(wrong := np.flatnonzero(graph.source[numbers] != sources)):
        return (
            f"numbers the edges into node {targets[wrong[0]]} wrongly: rows and numbers are of "
            "other edges"
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
    """Of few rows: whether an edge is there twice, and, where that can be done, as `draw` draws."""
    indptr, edge = block.indptr.cpu().numpy(), block.edge.cpu().numpy()
    rows_out = len(indptr) - 1
    rows = sorted(rule.sample(range(rows_out), min(ROWS, rows_out)))
    asked = nodes[rows]
    drawn: list[list[int]] | list[None] = [None] * len(rows)
    if draw is not None:
        drawn = draw.places(asked.tolist(), graph.degrees(asked).tolist())
    for row, node, wanted in zip(rows, asked.tolist(), drawn, strict=True):
        edges = edge[indptr[row] : indptr[row + 1] - 1]
        _, numbers = graph.edges_into(node)
        if wanted is not None and sorted(np.searchsorted(numbers, edges)) != sorted(wanted):
            return f"has other neighbours of node {node} than its seed, step and layer draw"
        if not replace and len(np.unique(edges)) < len(edges):
            return f"has an edge into node {node} twice"
    return None
