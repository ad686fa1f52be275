"""Which rows of a layer are compared, and what the reference form needs to compute them.

A layer runs at its real shape, on all of its rows. The reference form computes in float64 on a CPU,
one edge after another, which would take minutes for a large graph, so it computes some of the rows
and what these depend on.

Of a graph they are the rows beside likely borders of blocks, the one with most edges, and random
ones. BatchNorm needs all rows, so a micro-batch of images becomes few of its images, repeated in
random order: then its statistics, outputs and gradients are those of the few images.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gnnhpc.batches.batch import Inputs
from gnnhpc.graphs.blocks import Block, GraphChunk
from gnnhpc.graphs.node_features import IndexedRows, SparseRows, take_rows
from gnnhpc.models.context import Context
from gnnhpc.validation.layers.layer_inputs import ComparedLayers, LayerInput
from gnnhpc.validation.reference.edge_lists import Activation, EdgeList
from gnnhpc.validation.reference.layer_parts import ForwardPass

MOST_NUMBERS = 4_000_000
"""Numbers that the reference form computes for the edges of the compared rows, or for the rows of a
layer without edges: a comparison takes about 0.2 s and 300 MB."""
MOST_IMAGES = 7
"""Distinct images of a micro-batch."""


@dataclass(frozen=True)
class ComparedRows:
    """What a layer and its reference form compute, and which of their rows are equal."""

    x: Inputs
    """The layer's input at its real shape."""
    context: Context
    reference_x: Activation
    """The reference form's input, float64 on the CPU."""
    settings: ForwardPass
    """What else the reference form needs."""
    outputs: Tensor
    """int64 [n]: rows of the layer's output."""
    reference_outputs: Tensor
    """int64 [n]: rows of the reference form's output, which they equal."""
    inputs: Tensor
    """int64 [m]: rows of the layer's input that have a gradient."""
    reference_inputs: Tensor
    """int64 [m]: rows of the reference form's input, which they equal."""
    share: float
    """Share of the layer's rows, or images, that the reference form computes."""
    repeats: int = 1
    """How many times the layer's input has the reference form's. Gradients of parameters are as
    many times as large."""


def compared_rows(
    layers: ComparedLayers, given: LayerInput, generator: torch.Generator
) -> ComparedRows:
    """The rows of these layers that are compared; random ones come from a CPU's `generator`."""
    chunk = given.context.graph
    if chunk is None:
        return _repeated_images(given, generator)
    if layers.rows == "pool":
        return _pooled_graphs(layers, given, chunk.pooling_block, generator)
    if layers.rows == "hop":
        (hop,) = (spec.number for spec in layers.specs if spec.rows == "hop")
        return _rows_with_neighbours(layers, given, chunk, chunk.blocks[hop], generator)
    real = _real_rows(chunk, len(given.x))
    most = MOST_NUMBERS // _numbers_a_row(layers, given.x)
    rows = real[chosen_rows(torch.ones_like(real), most, generator)]
    settings = _settings(given.context, ids=chunk.nodes.cpu()[rows])
    return _compared(given, settings, rows, torch.arange(len(rows)), rows, of=len(real))


def _repeated_images(given: LayerInput, generator: torch.Generator) -> ComparedRows:
    assert isinstance(given.x, Tensor)
    images = len(given.x)
    # Each of them comes equally often, as its share of all statistics is to be the same.
    distinct = next((n for n in range(2, MOST_IMAGES + 1) if images % n == 0), 1)
    order = (torch.arange(images) % distinct)[torch.randperm(images, generator=generator)]
    few, everyone = given.x[:distinct], torch.arange(images)
    return ComparedRows(
        few[order.to(few.device)],
        given.context,
        few.cpu().double(),
        _settings(given.context, side=math.isqrt(few.shape[1])),
        everyone,
        order,
        everyone,
        order,
        share=distinct / images,
        repeats=images // distinct,
    )


def _rows_with_neighbours(
    layers: ComparedLayers,
    given: LayerInput,
    chunk: GraphChunk,
    block: Block,
    generator: torch.Generator,
) -> ComparedRows:
    real = _real_rows(chunk, block.rows_out)
    edges_into = block.indptr.long().cpu().diff()
    most = MOST_NUMBERS // _numbers_a_row(layers, given.x)
    rows = real[chosen_rows(edges_into[real], most, generator)]
    source, target, number, weight = _edges_into(block, rows)
    nodes = torch.cat((rows, source)).unique()
    source, target = (torch.searchsorted(nodes, ends) for ends in (source, target))
    weighted = chunk.weighted_degree
    weighted = None if weighted is None else weighted.cpu()[nodes]
    edges = (source, target, number, chunk.degree.cpu()[nodes], chunk.sampled, weight, weighted)
    graph = EdgeList(len(nodes), *edges)
    settings = _settings(given.context, ids=chunk.nodes.cpu()[nodes], edges=graph)
    at = torch.searchsorted(nodes, rows)
    return _compared(given, settings, rows, at, nodes, of=len(real))


def _pooled_graphs(
    layers: ComparedLayers, given: LayerInput, block: Block, generator: torch.Generator
) -> ComparedRows:
    most = MOST_NUMBERS // _numbers_a_row(layers, given.x)
    rows = chosen_rows(block.indptr.long().cpu().diff(), most, generator)
    source, target, _, _ = _edges_into(block, rows)
    nodes, order = source.sort()
    pooled = torch.searchsorted(rows, target)[order]
    settings = _settings(given.context, graph_of_row=pooled, graphs=len(rows))
    return _compared(given, settings, rows, torch.arange(len(rows)), nodes, of=block.rows_out)


def chosen_rows(edges: Tensor, most: int, generator: torch.Generator) -> Tensor:
    """int64 [n]: rows that have at most `most` edges together, ascending.

    `edges` int64 [rows] counts each row's. If there are more, the rows are the one of most edges
    that leaves room for others, those beside the borders of powers of two and of threads' shares,
    the first and last ones among them, and random ones.
    """
    count = len(edges)
    if int(edges.sum()) <= most:
        return torch.arange(count)
    fits = edges <= most // 4
    largest = int(torch.where(fits, edges, -1).argmax())
    threads = torch.get_num_threads()
    borders = {count * thread // threads for thread in range(threads + 1)}
    for power in range(4, count.bit_length()):
        borders |= {1 << power, count >> power << power}
    beside = {border + step for border in borders for step in (-1, 0, 1)}
    near = torch.tensor(sorted(row for row in beside if 0 <= row < count), dtype=torch.int64)
    near = near[torch.randperm(len(near), generator=generator)]
    random = torch.randint(count, (min(count, most),), generator=generator)
    # The order says which of them are left out where there are too many edges.
    in_order = torch.cat((torch.tensor([largest, count - 1, 0]), near, random))
    in_order = in_order[fits[in_order]]
    chosen: Tensor = in_order[edges[in_order].cumsum(0) <= most].unique()
    return chosen


def _real_rows(chunk: GraphChunk, rows: int) -> Tensor:
    """int64 [n]: those of the first `rows` rows that are no padding."""
    return (chunk.nodes[:rows] >= 0).nonzero().flatten().cpu()


def _numbers_a_row(layers: ComparedLayers, x: Inputs) -> int:
    """The most numbers that the reference form has for an edge, or for a row without edges."""
    widths = [math.prod(spec.shape) for spec in layers.specs]
    widths += [len(p) for layer in layers.layers for p in layer.parameters() if p.ndim == 2]
    stored = len(x.values) // max(len(x), 1) if isinstance(x, SparseRows) else x.shape[1]
    return max(*widths, stored)


def _edges_into(block: Block, rows: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Source, target and number of each edge into these rows, int64, and its weight, on the CPU."""
    first = block.indptr.long().cpu()
    counts = first.diff()[rows]
    before = counts.cumsum(0) - counts
    places = torch.arange(int(counts.sum())) + torch.repeat_interleave(first[rows] - before, counts)
    there = places.to(block.source.device)
    source, number = block.source[there].long().cpu(), block.edge[there].long().cpu()
    weight = None if block.edge_weight is None else block.edge_weight[there].cpu().double()
    return source, torch.repeat_interleave(rows, counts), number, weight


def _compared(
    given: LayerInput, settings: ForwardPass, rows: Tensor, at: Tensor, nodes: Tensor, *, of: int
) -> ComparedRows:
    return ComparedRows(
        given.x,
        given.context,
        _in_double(given.x, nodes),
        settings,
        rows,
        at,
        nodes,
        torch.arange(len(nodes)),
        share=len(rows) / max(of, 1),
    )


def _in_double(x: Inputs, rows: Tensor) -> Activation:
    """These rows as the reference form takes them."""
    if isinstance(x, SparseRows):
        taken = take_rows(x.to("cpu"), rows)
        assert isinstance(taken, SparseRows)
        return taken.with_values(taken.values.double())
    if isinstance(x, IndexedRows):
        return x.features[x.nodes[rows.to(x.nodes.device)]].cpu().double()
    return x[rows.to(x.device)].cpu().double()


def _settings(context: Context, **of_rows: Any) -> ForwardPass:
    """A training step, whose running statistics the caller moves after it."""
    fixed: dict[str, Any] = {"training": True, "deferred": True, "statistics": {}}
    return ForwardPass(context.step, context.seed, **fixed, **of_rows)
