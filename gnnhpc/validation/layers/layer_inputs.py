"""The layers that kernel parity compares, and inputs to them in the shapes of one micro-batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from gnnhpc.batches.batch import Inputs, MicroBatch
from gnnhpc.core.layer_specs import LayerSpec, row_changes
from gnnhpc.engines.engine import first_input
from gnnhpc.engines.stage import Stage
from gnnhpc.experiment.experiment import Experiment
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
    takes_data: bool
    """Whether the input is the model's own, which needs no gradient."""
    in_one_call: bool = False
    """Whether they are compared as the stack of them, which one call computes."""

    @property
    def name(self) -> str:
        if self.in_one_call:
            return f"one call of {self.specs[0].name} to {self.specs[-1].name}"
        return " + ".join(spec.name for spec in self.specs)

    @property
    def rows(self) -> str:
        """What the layers do to their rows, as `LayerSpec.rows` has it."""
        changes = [spec.rows for spec in self.specs if spec.rows != "same"]
        return changes[0] if changes else "same"

    @property
    def kind(self) -> tuple[object, ...]:
        """Layers of equal kinds have the same code, shapes and settings.

        A model's first convolution is of another kind: it may multiply and sum in another order.
        """
        classes = tuple(type(layer) for layer in self.layers)
        shapes = tuple((s.kind, s.inputs, s.shape, s.number == 0) for s in self.specs)
        return (*classes, *shapes)


@dataclass(frozen=True)
class LayerInput:
    """What a layer gets in one micro-batch."""

    x: Inputs
    context: Context


def compared_layers(stage: Stage, first: str) -> list[ComparedLayers]:
    """All layers of a stage; `first` is the name of the model's first layer."""
    found = []
    for part in stage.virtual_stages:
        pairs = list(zip(part.specs, part.layers, strict=True))
        while pairs:
            spec = pairs[0][0]
            of_features = spec.kind == "dropout" and spec.name == first
            together, pairs = pairs[: 1 + of_features], pairs[1 + of_features :]
            specs, layers = zip(*together, strict=True)
            found.append(ComparedLayers(specs, layers, spec.name == first))
    return found


def stacked_layers(stage: Stage) -> list[ComparedLayers]:
    """The last few layers of each call that computes several layers of the stage."""
    found = []
    for part in stage.virtual_stages:
        for first, stack in stacks_of(part.layers).items():
            end = first + len(stack.layers)
            few = slice(max(first, end - STACKED), end)
            specs, layers = tuple(part.specs[few]), tuple(part.layers[few])
            found.append(ComparedLayers(specs, layers, takes_data=False, in_one_call=True))
    return found


def one_of_each_kind(layers: Sequence[ComparedLayers], when: When) -> list[ComparedLayers]:
    """The last of each kind at the start, and the first of each kind at the end."""
    in_order = layers if when == "start" else layers[::-1]
    return list({each.kind: each for each in in_order}.values())


def layer_inputs(
    experiment: Experiment, parts: TrainingParts, layers: Iterable[ComparedLayers], when: When
) -> dict[nn.Module, LayerInput]:
    """What the first of these layers get.

    The micro-batch is the first one of the first training step at the start, and the last one of
    the last step at the end. The model's first layer gets its data. The others get random numbers
    in the shape that training brings them, so that no layer before them has to compute.
    """
    step, number = 0, 0
    if when == "end":
        step, number = experiment.train_steps - 1, experiment.microbatches - 1
    generator = torch.Generator().manual_seed(experiment.seed)
    with parts.batches.open("train", step, step + 1) as batches:
        microbatch = next(batches).microbatches[number]
        return {each.layers[0]: _input_of(parts, each, microbatch, generator) for each in layers}


def _input_of(
    parts: TrainingParts, layers: ComparedLayers, microbatch: MicroBatch, generator: torch.Generator
) -> LayerInput:
    context = microbatch.context
    if layers.takes_data:
        x = first_input(microbatch)
        # A loader reads the next mini-batch into the same memory.
        return LayerInput(x.clone() if isinstance(x, Tensor) else x, context)
    numbers = torch.randn(_input_shape(parts, layers.specs[0], context), generator=generator)
    parameters = (p for layer in layers.layers for p in layer.parameters())
    # torchgpipe has stages on several devices of one process.
    device = next((p.device for p in parameters), parts.plan.mesh.device)
    if context.graph is not None and context.graph.nodes.device != device:
        context = replace(context, graph=context.graph.to(device))
    return LayerInput(numbers.to(device, parts.plan.dtype), context)


def _input_shape(parts: TrainingParts, spec: LayerSpec, context: Context) -> tuple[int, ...]:
    """The shape of a layer's input in one micro-batch."""
    before = parts.layer_specs[: parts.layer_specs.index(spec)]
    if context.graph is None:
        return parts.batches.shape_after(len(before) - 1)
    return (context.graph.rows[row_changes(before)], *spec.inputs)
