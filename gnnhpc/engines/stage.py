"""The layers of one stage as a module; each layer has its own seed."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from gnnhpc.core.errors import GnnhpcError
from gnnhpc.core.layer_specs import LayerSpec, row_changes
from gnnhpc.engines.activation_checkpointing import checkpointed
from gnnhpc.engines.step_timer import StepTimer
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.experiment.stage_cut import stage_slices
from gnnhpc.graphs.node_features import SparseRows
from gnnhpc.models.custom_model import CustomModel
from gnnhpc.models.layers.batchnorm import BatchNorm
from gnnhpc.models.layers.compiled import compile_custom_layer, compile_library_layer
from gnnhpc.models.layers.stacked import Stack, stacks_of
from gnnhpc.models.model import BuildOptions, Context
from gnnhpc.models.seeding import fork_generators, seed_all


class Stage(nn.Module):
    """Neighbouring layers of a model; parameters have the same names in every layout.

    `first_change` is how many layers before these change the rows. Of the micro-batches in
    `recomputed` a stage keeps its input alone, and recomputes its forward in backward.
    """

    recomputed: Collection[int] = ()
    separate: bool = False
    """Whether its virtual stages are no neighbours in the model, and the engine calls each."""
    on_gradient: Mapping[int, Callable[[], None]] = {}
    """Layer -> the function to call when the gradient of its output arrives, in
    `hooked_microbatch`."""
    hooked_microbatch: int | None = None
    _virtual_stages: tuple[Stage, ...] = ()
    _stacks: Mapping[int, Stack] = {}

    def __init__(
        self,
        specs: Sequence[LayerSpec],
        modules: Sequence[nn.Module],
        timer: StepTimer,
        first_change: int = 0,
    ) -> None:
        super().__init__()
        self.specs = list(specs)
        self.timer = timer
        self._first_change = first_change
        self._changes = [first_change + row_changes(specs[: n + 1]) for n in range(len(specs))]
        for spec, module in zip(specs, modules, strict=True):
            parent: nn.Module = self
            *groups, name = spec.name.split(".")
            for group in groups:
                # Not by add_module: a layer may be called `half` or `timer`, as a module's own is.
                parent._modules.setdefault(group, nn.Module())
                parent = cast(nn.Module, parent._modules[group])
            parent._modules[name] = module
        self.layers = list(modules)
        """The modules in order."""
        self._by_hop = [spec.rows == "hop" for spec in specs]
        self._shapes_are_known = False
        self._minibatch_ends: list[Callable[[], None]] = [
            cast(Any, module).end_minibatch
            for module in self.modules()
            if module is not self and hasattr(module, "end_minibatch")
        ]

    def forward(self, x: Tensor | SparseRows, context: Context) -> Tensor:
        """One micro-batch's activation [rows, ...] through all layers.

        Raises GnnhpcError in its first forward for a layer whose output has not the shape of its
        specification.
        """
        if context.microbatch in self.recomputed and torch.is_grad_enabled():
            passes_on = isinstance(x, Tensor) and x.requires_grad
            if passes_on or any(p.requires_grad for p in self.parameters()):
                return checkpointed(self, self._through_layers, x, context, self.timer)
        return self._through_layers(x, context)

    def _through_layers(self, x: Tensor | SparseRows, context: Context) -> Tensor:
        hooked = self.hooked_microbatch == context.microbatch and torch.is_grad_enabled()
        stacks = {} if hooked else self._stacks
        number = 0
        while number < len(self.layers):
            rows = len(x) if not self._shapes_are_known else 0
            stack = stacks.get(number)
            output = stack(x) if stack is not None and isinstance(x, Tensor) else None
            if stack is not None and output is not None:
                number += len(stack.layers) - 1
                x = output
            elif self._by_hop[number]:
                x = _through_hop(self.layers[number], x, context, self._changes[number] - 1)
            else:
                x = self.layers[number](x, context)
            if not self._shapes_are_known:
                self._check_shape(number, rows, x, context)
            called = self.on_gradient.get(number) if hooked else None
            if called is not None and isinstance(x, Tensor) and x.requires_grad:
                x.register_hook(partial(_call, called))
            number += 1
        self._shapes_are_known = True
        return x if isinstance(x, Tensor) else x.to_dense()

    def _check_shape(
        self, number: int, rows: int, output: Tensor | SparseRows, context: Context
    ) -> None:
        spec = self.specs[number]
        if spec.rows != "same":
            rows = context.chunk.rows[self._changes[number]]
        if len(output) != rows or output.shape[1:] != spec.shape:
            expected = f"its outline (rows: {spec.rows}) has {[rows, *spec.shape]}"
            raise GnnhpcError(f"{spec.name} returns {list(output.shape)} where {expected}")

    @property
    def row_changes(self) -> tuple[int, int]:
        """How many layers change the rows before these, and with them."""
        return self._first_change, self._changes[-1]

    @property
    def virtual_stages(self) -> tuple[Stage, ...]:
        """What an engine calls, first to last: this stage, or the virtual stages that it holds."""
        return self._virtual_stages or (self,)

    def use_stacks(self) -> None:
        """Compute neighbouring layers by one call where it can be done.

        It suits an engine whose micro-batches each have a backward of their own.
        """
        for stage in self.virtual_stages:
            stage._stacks = stacks_of(stage.layers)

    def cut_into(
        self, ranges: Sequence[range], first_changes: Sequence[int] | None = None
    ) -> tuple[Stage, ...]:
        """Stages of the same modules, for an engine that calls one after the other.

        `first_changes` are theirs where they are no neighbours in the model.
        """
        if first_changes is None:
            before = [row_changes(self.specs[: each.start]) for each in ranges]
            first_changes = [self._first_change + each for each in before]
        self._virtual_stages = tuple(
            Stage([self.specs[i] for i in each], [self.layers[i] for i in each], self.timer, first)
            for each, first in zip(ranges, first_changes, strict=True)
        )
        return self._virtual_stages

    def end_minibatch(self) -> None:
        """Call every layer's `end_minibatch`: deferred BatchNorm updates its statistics there."""
        for end in self._minibatch_ends:
            end()

    def forget_minibatch(self) -> None:
        """Drop what layers keep of a mini-batch until its end."""
        for module in self.modules():
            if isinstance(module, BatchNorm):
                module.forget_minibatch()


def _call(function: Callable[[], None], gradient: Tensor) -> None:
    function()


def _through_hop(layer: nn.Module, x: Any, context: Context, hop: int) -> Any:
    """A layer that uses neighbours, in blocks of rows where the chunk says so."""
    blocks = context.chunk.row_blocks
    if blocks is None:
        return layer(x, context)
    return blocks.through(
        lambda rows, chunk: layer(rows, dataclasses.replace(context, graph=chunk)), x, hop
    )


def build_stage(
    experiment: Experiment,
    specs: Sequence[LayerSpec],
    ranges: Sequence[range],
    timer: StepTimer,
) -> Stage:
    """Build the layers in `ranges`, with the same initial values in every layout, for one seed.

    Several ranges are virtual stages, which are no neighbours in the model.
    """
    modules = []
    model = experiment.model.loaded
    options = BuildOptions(getattr(torch, experiment.dtype), experiment.batchnorm)
    layers = [index for each in ranges for index in each]
    with fork_generators():
        for index in layers:
            seed_all(layer_seed(experiment.seed, specs[index].name))
            modules.append(model.build(specs[index], options))
            _compile(experiment, specs, index, modules[-1])
    changes = [row_changes(specs[: each.start]) for each in ranges]
    stage = Stage([specs[i] for i in layers], modules, timer, changes[0])
    if len(ranges) > 1:
        stage.separate = True
        stage.cut_into(stage_slices([len(each) for each in ranges]), changes)
    return stage


def _compile(
    experiment: Experiment, specs: Sequence[LayerSpec], index: int, module: nn.Module
) -> None:
    """Let torch compile a layer where the experiment asks for it."""
    mode = experiment.compile
    if mode == "off":
        return
    # Micro-batches that differ in their numbers of rows or edges.
    in_chunks = experiment.kind == "graph" and experiment.microbatches > 1
    dynamic = experiment.epochs_end_unevenly or in_chunks
    if isinstance(experiment.model, CustomModel):
        hop = row_changes(specs[:index]) if specs[index].rows == "hop" else None
        compile_custom_layer(module, mode, dynamic=dynamic, hop=hop)
    else:
        compile_library_layer(module, mode, dynamic=dynamic)


def layer_seed(seed: int, name: str) -> int:
    """A seed for each layer, so that a stage need not build the layers before it."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return int.from_bytes(digest[:7], "big")
