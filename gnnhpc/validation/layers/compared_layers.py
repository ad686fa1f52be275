"""The layers that kernel parity compares, and inputs to them in the shapes of one micro-batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import nn

from gnnhpc.batches.batch import Inputs, MicroBatch
from gnnhpc.core.layer_specs import LayerSpec, row_changes
from gnnhpc.engines.engine import first_input
from gnnhpc.engines.stage import Stage
from gnnhpc.models.layers.stacked import stacks_of
from gnnhpc.models.model import Context
from gnnhpc.training.setup import TrainingParts

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
