"""The evaluation of a graph too large to be computed at once: layer by layer, over replicas."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from gnnhpc.batches.sampled import in_turn_batches
from gnnhpc.batches.sampled.graph_sampler import GraphSampler
from gnnhpc.engines.stage import Stage
from gnnhpc.graphs.blocks import GraphChunk
from gnnhpc.graphs.in_turn import RowsInTurn
from tests.defects import settings
from tests.defects.defect import planted
from tests.defects.patching import around
from tests.tools.few_edges import few_edges_at_once

KIND = "large graphs"
ROWS = 8_000
defect = functools.partial(planted, kind=KIND, setting=settings.SAMPLED_LARGE)


@defect("hidden rows that do not reach the other replica")
def not_exchanged() -> None:
    few_edges_at_once()

    def alone(true: Any, *args: Any) -> RowsInTurn:
        rows: RowsInTurn = true(*args[:-1], lambda _: None)
        return rows

    around(in_turn_batches, "RowsInTurn", alone)


@defect("hidden rows of the nodes beside")
def shifted() -> None:
    few_edges_at_once()

    def beside(true: Any, rows: RowsInTurn, layer: Any, x: Any, hop: int) -> Tensor:
        output: Tensor = true(rows, layer, x, hop)
        return output.roll(1, 0) if hop == 0 else output

    around(RowsInTurn, "through", beside)


@defect(
    "later micro-batches evaluated as the first numbers nodes",
    setting=settings.SAMPLED_LARGE_PARTS,
)
def as_the_first() -> None:
    """What enters a micro-batch's first layer begins with its own nodes."""
    few_edges_at_once()

    def counted(true: Any, rows: RowsInTurn, layer: Any, x: Any, hop: int) -> Tensor:
        first = hop == 0 and rows.hops > 1
        output: Tensor = true(replace(rows, own=range(1)) if first else rows, layer, x, hop)
        return output

    around(RowsInTurn, "through", counted)


@defect("neighbours drawn where all were to be evaluated")
def drawn() -> None:
    few_edges_at_once()

    def few(true: Any, rows: RowsInTurn, part: range) -> Iterator[GraphChunk]:
        sampler = cast(GraphSampler, rows.one_hop).another()
        sampler.fanouts = (3,)
        for whole in true(rows, part):
            chunk = sampler.chunk(whole.nodes[: whole.own], 0)
            yield replace(chunk, blocks=tuple(chunk.blocks) * rows.hops, sampled=False)

    around(RowsInTurn, "pieces", few)


def where_large(number: int, change: Callable[[Stage, Tensor], Tensor]) -> None:
    """Change what a layer gives in training, in tensors of more rows than any self-check's."""

    def through(true: Any, stage: Stage, layer: int, *given: Any) -> Any:
        output, end = true(stage, layer, *given)
        if layer == number and len(output) > ROWS and output.requires_grad:
            output = change(stage, output)
        return output, end

    around(Stage, "_through_layer", through)


def first_rows(x: Tensor) -> Tensor:
    return x * (torch.arange(len(x))[:, None] < ROWS)


def hook_once(parameters: Iterable[Tensor], hook: Callable[[Tensor], Tensor]) -> None:
    for parameter in parameters:
        if not parameter._backward_hooks:
            parameter.register_hook(hook)


@defect("gradients of the last rows of large tensors lost", setting=settings.LARGE)
def last_rows_lost() -> None:
    """As by a kernel whose grid is too small: in no self-check are tensors as large."""

    def lost(_stage: Stage, output: Tensor) -> Tensor:
        output.register_hook(first_rows)
        return output

    where_large(1, lost)


@defect("a gradient with zeros where tensors are large", setting=settings.LARGE)
def zeros_where_large() -> None:
    """As where a sum over rows is written for some columns alone: what the gradient has is right,
    and along it the loss changes as it says."""

    def every_third_zero(gradient: Tensor) -> Tensor:
        kept = gradient.clone()
        kept.view(-1)[::3] = 0.0
        return kept

    def zeros(stage: Stage, output: Tensor) -> Tensor:
        hook_once(stage.layers[2].parameters(), every_third_zero)
        return output

    where_large(2, zeros)


@defect("the last rows of large tensors zero in training", setting=settings.LARGE)
def zero_in_training() -> None:
    """Their gradients are those of what was computed, and an evaluation is right."""
    where_large(2, lambda _stage, output: first_rows(output))


@defect("a last layer's bias without a gradient where tensors are large", setting=settings.LARGE)
def bias_lost_where_large() -> None:
    """Seven numbers of 280,000, of a gradient that hardly weighs."""

    def lost(stage: Stage, output: Tensor) -> Tensor:
        hook_once([stage.layers[4].get_parameter("bias")], torch.zeros_like)
        return output

    where_large(4, lost)
