"""Which layers kernel parity compares, on which input, and in which rows.

A layer runs at its real shape, on all of its rows. The reference computes in plain torch in float64
on a CPU, which would take minutes for a large graph, so it computes some of the rows and what these
depend on.

Of a graph they are the rows beside likely borders of blocks, the one with most edges, and random
ones. BatchNorm needs all rows, so a micro-batch of images becomes few of its images, repeated in
random order: then its statistics, outputs and gradients are those of the few images.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import EllipsisType
from typing import Literal

import torch
from torch import Tensor, nn

from gnnhpc.batches.batch import Inputs, MicroBatch
from gnnhpc.core.layer_specs import LayerSpec, row_changes
from gnnhpc.engines.engine import first_input
from gnnhpc.engines.stage import Stage
from gnnhpc.graphs.blocks import Block, GraphChunk
from gnnhpc.graphs.csr import offsets, segments
from gnnhpc.graphs.node_features import IndexedRows, SparseRows, take_rows
from gnnhpc.models.layers.stacked import stacks_of
from gnnhpc.models.model import Context
from gnnhpc.training.setup import TrainingParts
from gnnhpc.validation.reference.batches import Activation
from gnnhpc.validation.reference.fresh_layers import MasksByRule

STACKED = 3
"""Layers of a stack that are compared."""
When = Literal["start", "end"]
"""Whether the comparison precedes an attempt's first step or follows its last one."""


@dataclass(frozen=True)
class ComparedLayers:
    """Neighbouring layers of a stage that are compared as one, first to last.

    There is one layer but for the dropout of a model's features, which the layer behind it may
    apply while it reads them, and for a stack.
    """

    specs: tuple[LayerSpec, ...]
    layers: tuple[nn.Module, ...]
    takes_data: bool = False
    """Whether the input is the model's own, which needs no gradient."""
    in_one_call: bool = False
    """Whether they are compared as the stack of them, which one call computes."""

    @property
    def name(self) -> str:
        if self.in_one_call:
            return f"one call of {self.specs[0].name} to {self.specs[-1].name}"
        return " + ".join(spec.name for spec in self.specs)

    @property
    def kind(self) -> tuple[object, ...]:
        """Layers of equal kinds have the same code, shapes and settings.

        A model's first convolution is of another kind: it may multiply and sum in another order.
        """
        classes = tuple(type(layer) for layer in self.layers)
        shapes = tuple((s.kind, s.inputs, s.shape, s.number == 0) for s in self.specs)
        return (*classes, *shapes)


def compared_layers(parts: TrainingParts, when: When) -> list[ComparedLayers]:
    """The last layer of each kind that a stage has at the start, and the first at the end.

    At the start also the last few layers of each call that computes several.
    """
    layers = [each for part in parts.stage.virtual_stages for each in _layers(part, parts)]
    in_order = layers if when == "start" else layers[::-1]
    chosen = list({each.kind: each for each in in_order}.values())
    for part in parts.stage.virtual_stages if when == "start" else ():
        for first, stack in stacks_of(part.layers).items():
            end = first + len(stack.layers)
            few = slice(max(first, end - STACKED), end)
            specs, together = tuple(part.specs[few]), tuple(part.layers[few])
            chosen.append(ComparedLayers(specs, together, in_one_call=True))
    return chosen


def _layers(part: Stage, parts: TrainingParts) -> Iterator[ComparedLayers]:
    pairs = list(zip(part.specs, part.layers, strict=True))
    while pairs:
        spec = pairs[0][0]
        is_first = spec.name == parts.layer_specs[0].name
        count = 2 if is_first and spec.kind == "dropout" else 1
        specs, layers = zip(*pairs[:count], strict=True)
        yield ComparedLayers(specs, layers, takes_data=is_first)
        pairs = pairs[count:]


def layer_input(
    parts: TrainingParts, layers: ComparedLayers, microbatch: MicroBatch, numbers: torch.Generator
) -> tuple[Inputs, Context]:
    """What the first of the layers gets in a micro-batch.

    The model's first layer gets its data. The others get random numbers in the shape that training
    brings them, so that no layer before them has to compute.
    """
    context = microbatch.context
    if layers.takes_data:
        return first_input(microbatch), context
    # torchgpipe has stages on several devices of one process.
    parameters = (p for layer in layers.layers for p in layer.parameters())
    device = next((p.device for p in parameters), parts.plan.mesh.device)
    before = parts.layer_specs[: parts.layer_specs.index(layers.specs[0])]
    if context.graph is None:
        shape = parts.batches.shape_after(len(before) - 1)
    else:
        shape = (context.graph.rows[row_changes(before)], *layers.specs[0].inputs)
        if context.graph.nodes.device != device:
            context = replace(context, graph=context.graph.to(device))
    return torch.randn(shape, generator=numbers).to(device, parts.plan.dtype), context


Places = Tensor | EllipsisType
"""Some rows, int64 [n], or all of them."""
ALL = ...
MOST_NUMBERS = 4_000_000
"""Numbers that the reference computes for the edges of the compared rows, or for the rows of a
layer without edges: a comparison takes about 0.2 s and 300 MB."""
MOST_IMAGES = 7
"""Distinct images of a micro-batch."""


@dataclass(frozen=True)
class ComparedRows:
    """What a layer and its reference compute, and which of their rows are equal."""

    x: Inputs
    """The layer's input at its real shape."""
    context: Context
    reference_x: Activation
    """The reference's input, float64 on the CPU."""
    reference_context: Context
    """Of a graph with a chunk that has the compared rows alone."""
    outputs: Tensor
    """int64 [n]: the rows of the layer's output that are compared."""
    inputs: Tensor
    """int64 [m]: the rows of its input whose gradients are compared."""
    places: Places
    """The same rows in the output and the input of the reference."""
    share: float
    """Share of the layer's rows, or images, that the reference computes."""
    repeats: int = 1
    """How many times the layer's input has the reference's. Gradients of parameters are as many
    times as large."""


def compared_rows(
    layers: ComparedLayers, x: Inputs, context: Context, generator: torch.Generator
) -> ComparedRows:
    """The rows of these layers that are compared; random ones come from a CPU's `generator`."""
    chunk = context.graph
    if chunk is None:
        assert isinstance(x, Tensor)
        return _repeated_images(x, context, generator)
    most = MOST_NUMBERS // _numbers_a_row(layers, x)
    changing = next((spec for spec in layers.specs if spec.rows != "same"), None)
    if changing is None:
        real = _real_rows(chunk, len(x))
        rows = nodes = real[chosen_rows(torch.ones_like(real), most, generator)]
        part = _restricted(chunk, nodes)
    else:
        pools = changing.rows == "pool"
        block = chunk.pooling_block if pools else chunk.blocks[changing.number]
        real = torch.arange(block.rows_out) if pools else _real_rows(chunk, block.rows_out)
        rows = real[chosen_rows(block.indptr.long().cpu().diff()[real], most, generator)]
        into = _edges_into(block, rows)
        nodes = into.source.unique()
        if not pools:
            # A layer's output rows are the first of its input rows.
            nodes = torch.cat((rows, nodes[~torch.isin(nodes, rows)]))
        place = torch.full((block.rows_in,), -1).index_copy(0, nodes, torch.arange(len(nodes)))
        into = replace(into, source=place[into.source], rows_in=len(nodes))
        part = _restricted(chunk, nodes)
        if pools:
            part = replace(part, pooling=into)
        else:
            part = replace(part, blocks=(into,) * (changing.number + 1))
    reference = replace(context, graph=part, masks=MasksByRule(context.step, training=True))
    share = len(rows) / max(len(real), 1)
    few = _in_double(x, nodes)
    return ComparedRows(x, context, few, reference, rows, nodes, ALL, share)


def _repeated_images(x: Tensor, context: Context, generator: torch.Generator) -> ComparedRows:
    images = len(x)
    # Each of them comes equally often, as its share of all statistics is to be the same.
    distinct = next((n for n in range(2, MOST_IMAGES + 1) if images % n == 0), 1)
    order = (torch.arange(images) % distinct)[torch.randperm(images, generator=generator)]
    few, everyone = x[:distinct], torch.arange(images)
    return ComparedRows(
        few[order.to(few.device)],
        context,
        few.cpu().double(),
        context,
        outputs=everyone,
        inputs=everyone,
        places=order,
        share=distinct / images,
        repeats=images // distinct,
    )


def _restricted(chunk: GraphChunk, nodes: Tensor) -> GraphChunk:
    """A chunk on the CPU with these rows of an input alone, int64 [n], and no edges as yet."""
    weighted = chunk.weighted_degree
    return replace(
        chunk,
        nodes=chunk.nodes.cpu()[nodes],
        blocks=(),
        degree=chunk.degree.cpu()[nodes],
        targets={},
        pooling=None,
        weighted_degree=None if weighted is None else weighted.cpu()[nodes],
    )


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
    """The most numbers that the reference has for an edge, or for a row without edges."""
    widths = [math.prod(spec.shape) for spec in layers.specs]
    widths += [len(p) for layer in layers.layers for p in layer.parameters() if p.ndim == 2]
    stored = len(x.values) // max(len(x), 1) if isinstance(x, SparseRows) else x.shape[1]
    return max(*widths, stored)


def _edges_into(block: Block, rows: Tensor) -> Block:
    """The edges into these rows, int64 [n], on the CPU; the rows are numbered anew."""
    places, counts = segments(block.indptr.long().cpu().numpy(), rows.numpy())
    there = torch.from_numpy(places).to(block.source.device)
    target = torch.repeat_interleave(torch.arange(len(rows)), torch.from_numpy(counts))
    source, number = block.source[there].long().cpu(), block.edge[there].long().cpu()
    weight = None if block.edge_weight is None else block.edge_weight[there].cpu()
    indptr = torch.from_numpy(offsets(counts))
    return Block(indptr, source, target, number, block.rows_in, weight)


def _in_double(x: Inputs, rows: Tensor) -> Activation:
    """These rows as the reference takes them."""
    if isinstance(x, SparseRows):
        taken = take_rows(x.to("cpu"), rows)
        assert isinstance(taken, SparseRows)
        return taken.with_values(taken.values.double())
    if isinstance(x, IndexedRows):
        return x.features[x.nodes[rows.to(x.nodes.device)]].cpu().double()
    return x[rows.to(x.device)].cpu().double()
