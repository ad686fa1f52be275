"""The layers of one stage as a module; each layer has its own seed and is timed by itself."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cached_property, partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from gnnhpc.core.balance import stage_slices
from gnnhpc.core.layer_specs import LayerSpec, outline_mismatch, row_changes
from gnnhpc.engines.autograd import computed_again
from gnnhpc.engines.backward_marks import BackwardMarks
from gnnhpc.engines.called_together import CalledTogether, OnLayer
from gnnhpc.engines.clock import Mark
from gnnhpc.engines.given import Given
from gnnhpc.engines.timing import StepTimer
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.graphs.sparse_rows import SparseRows
from gnnhpc.models.context import Context
from gnnhpc.models.later_weights import Listener
from gnnhpc.models.layers.batchnorm import is_recomputing
from gnnhpc.models.model import BuildOptions
from gnnhpc.models.one_call import InOneCall, neighbours
from gnnhpc.models.recomputation import ForwardState
from gnnhpc.models.seeding import fork_generators, seed_all


class Stage(nn.Module):
    """Neighbouring layers of a model; parameters have the same names in every layout.

    `first_change` is how many layers before these change the rows. Of the micro-batches in
    `recomputed` it keeps its input alone, and computes its forward again in backward.
    """

    recomputed: Collection[int] = ()
    apart: bool = False
    """Whether its parts are no neighbours in the model: each is called by itself, never all."""
    _parts: tuple[Stage, ...] = ()

    def __init__(
        self,
        outlines: Sequence[LayerSpec],
        modules: Sequence[nn.Module],
        timer: StepTimer | None,
        first_change: int = 0,
    ) -> None:
        super().__init__()
        self.outlines = list(outlines)
        self._first_change = first_change
        self._changes = [
            first_change + row_changes(outlines[: n + 1]) for n in range(len(outlines))
        ]
        self.timer = timer
        for layer, module in zip(outlines, modules, strict=True):
            parent: nn.Module = self
            *groups, name = layer.name.split(".")
            for group in groups:
                # Not by add_module: a layer may be called `half` or `timer`, as a module's own is.
                parent._modules.setdefault(group, nn.Module())
                parent = cast(nn.Module, parent._modules[group])
            parent._modules[name] = module
        self.layers = list(modules)
        """The modules in order."""
        self._neighbours = neighbours(self.layers)
        self._together: dict[int, CalledTogether] = {}
        """Within a training step, by the first layer."""
        self._cut_in: int | None = None
        """The micro-batch of which calls end at certain layers."""
        self._cut_neighbours: list[range] = []
        self._cut_together: dict[int, CalledTogether] = {}
        self._forward = False
        self.on_layer: list[OnLayer] = []
        """Told of each layer, one after the other."""
        self.on_left: list[Listener] = []
        """Told of gradients of weights that a backward leaves for later."""
        self.on_backward: list[Callable[[str], None]] = []
        """Told of a layer when its backward begins, where that is seen: not within a call of
        several, and not of one that hands its input on or has nothing to train up to it."""

    def forward(self, x: Tensor | SparseRows, context: Context) -> Tensor:
        """One micro-batch's activation [rows, ...] through all layers.

        Raises GnnhpcError for a layer whose output has not the shape in its outline.
        """
        if context.microbatch in self.recomputed and torch.is_grad_enabled() and self._trains(x):
            layers = partial(self._through_layers, context=context)
            return computed_again(layers, x, self.state)
        return self._through_layers(x, context)

    def _trains(self, x: Tensor | SparseRows) -> bool:
        needs = isinstance(x, Tensor) and x.requires_grad
        return needs or any(p.requires_grad for p in self.parameters())

    def is_forward(self) -> bool:
        """Whether its layers go forward now, or again in backward."""
        return self._forward

    def hook_gradient(self, x: Tensor, told: Callable[[Tensor], None]) -> RemovableHandle:
        """Tell of the gradient of x that a backward brings; of none that a layer computes itself,
        in its forward."""

        def arrives(gradient: Tensor) -> None:
            if not self._forward:
                told(gradient)

        handle: RemovableHandle = x.register_hook(arrives)
        return handle

    @property
    def row_changes(self) -> tuple[int, int]:
        """How many layers change the rows before these, and with them."""
        return self._first_change, self._changes[-1]

    @cached_property
    def state(self) -> ForwardState:
        """What its forwards may move."""
        return ForwardState(self)

    def _through_layers(self, x: Tensor | SparseRows, context: Context) -> Tensor:
        if self.timer is None:
            done = 0
            while done < len(self.layers):
                x, _, done = self._from_layer(done, x, context, None)
            return x if isinstance(x, Tensor) else x.to_dense()
        self._forward = True
        try:
            x = self._timed_through_layers(self.timer, x, context)
        finally:
            self._forward = False
        return x if isinstance(x, Tensor) else x.to_dense()

    def _timed_through_layers(
        self, timer: StepTimer, x: Tensor | SparseRows, context: Context
    ) -> Tensor | SparseRows:
        # Each layer begins where the one before it ended: one mark a layer.
        began = start = timer.clock.mark()
        marks = BackwardMarks(timer, self.on_backward, self.is_forward)
        done = 0
        while done < len(self.layers):
            given, first = Given.of(x), done
            x, end, done = self._from_layer(done, x, context, start)
            assert end is not None
            start = end
            names = [layer.name for layer in self.outlines[first:done]]
            x = marks.after_layers(names, given, x)
        if is_recomputing():
            timer.recomputed(began, start)
        return x

    def _from_layer(
        self, number: int, x: Tensor | SparseRows, context: Context, start: Mark | None
    ) -> tuple[Tensor | SparseRows, Mark | None, int]:
        """The output of this layer, or of all that one call computes from it on; when it ended; and
        which layer comes next."""
        cut = context.microbatch == self._cut_in
        together = (self._cut_together if cut else self._together).get(number)
        if together is not None and isinstance(x, Tensor):
            found = together.forward(x, context, start)
            if found is not None:
                return *found, number + len(together.layers)
        return *self._through_layer(number, x, context, start), number + 1

    def _through_layer(
        self, number: int, x: Tensor | SparseRows, context: Context, start: Mark | None
    ) -> tuple[Tensor | SparseRows, Mark | None]:
        """Its output, and when it ended."""
        layer, module = self.outlines[number], self.layers[number]
        rows, given, changes = len(x), x, self._changes[number]
        timer, again = self.timer, is_recomputing()
        if timer is not None and start is not None and again:
            timer.layer_backward(layer.name, start)
        if layer.rows == "hop":
            x = _through_hop(module, x, context, changes - 1)
        else:
            x = module(x, context)
        if layer.rows != "same":
            rows = context.chunk.rows[changes]
        if len(x) != rows or x.shape[1:] != layer.shape:
            raise outline_mismatch(layer, rows, x.shape)
        for told in self.on_layer:
            told(layer, changes, given, x, context)
        if timer is None or start is None:
            return x, None
        end = timer.clock.mark()
        if not again:
            timer.layer_forward(layer.name, start, end)
        return x, end

    @contextlib.contextmanager
    def one_step(self, microbatches: int) -> Iterator[None]:
        """Around a training step's micro-batches: some layers are computed by one call.

        For an engine that adds gradients in place, on one device; nobody exchanges parameters or
        their gradients' buffers within it.
        """
        for called in self.called:
            called._prepare_calls(microbatches)
        try:
            yield
            for called in self.called:
                for together in (*called._together.values(), *called._cut_together.values()):
                    together.call.end()
        finally:
            for called in self.called:
                called._together, called._cut_together = {}, {}

    def cut_calls(self, microbatch: int, firsts: Collection[int]) -> None:
        """In one micro-batch no call computes a layer of `firsts` together with the one before."""
        cuts = sorted({*firsts, len(self.layers)})
        pieces = [
            range(max(start, each.start), min(stop, each.stop))
            for each in self._neighbours
            for start, stop in itertools.pairwise([0, *cuts])
        ]
        self._cut_in = microbatch
        self._cut_neighbours = [piece for piece in pieces if len(piece) > 1]

    def _prepare_calls(self, microbatches: int) -> None:
        cut = 0 if self._cut_in is None else 1
        self._together = self._calls_of(self._neighbours, microbatches - cut)
        self._cut_together = self._calls_of(self._cut_neighbours, cut)

    def _calls_of(
        self, neighbours: Sequence[range], microbatches: int
    ) -> dict[int, CalledTogether]:
        calls = {}
        for numbers in neighbours:
            mine = slice(numbers.start, numbers.stop)
            layers = self.layers[mine]
            call = cast(InOneCall, layers[0]).prepare_call(layers, microbatches)
            if call is not None:
                calls[numbers.start] = CalledTogether(
                    *(call, layers, self.outlines[mine], self._changes[mine]),
                    *(self.timer, self.on_layer),
                )
        return calls

    @property
    def parts(self) -> tuple[Stage, ...]:
        """What an engine calls, first to last: this stage, or the parts that it is cut into."""
        return self._parts or (self,)

    @property
    def called(self) -> tuple[Stage, ...]:
        """What takes the inputs of a stage and gives its outputs: all parts as one, or each."""
        return self.parts if self.apart else (self,)

    def cut_into(self, parts: Sequence[range], *, timed: bool) -> tuple[Stage, ...]:
        """Stages of the same modules, for an engine that calls one after the other.

        Layers are not `timed` where they are on several devices: each has a clock of its own.
        """
        before = [row_changes(self.outlines[: part.start]) for part in parts]
        changes = [self._first_change + each for each in before]
        return self._cut(parts, changes, self.timer if timed else None)

    def _cut(
        self, parts: Sequence[range], first_changes: Sequence[int], timer: StepTimer | None
    ) -> tuple[Stage, ...]:
        self._parts = tuple(
            Stage([self.outlines[i] for i in part], [self.layers[i] for i in part], timer, first)
            for part, first in zip(parts, first_changes, strict=True)
        )
        return self._parts

    def end_minibatch(self) -> None:
        """Call every layer's `end_minibatch`: deferred BatchNorm updates its statistics there."""
        for module in self.modules():
            end = getattr(module, "end_minibatch", None)
            if end is not None and module is not self:
                end()

    def state_names(self) -> list[str]:
        return list(self.state_dict())


def _through_hop(module: nn.Module, x: Any, context: Context, hop: int) -> Any:
    """A layer that uses neighbours: all rows at once, or some at a time where the chunk says so."""
    in_turn = context.chunk.in_turn
    if in_turn is None:
        return module(x, context)
    return in_turn.through(
        lambda rows, chunk: module(rows, dataclasses.replace(context, graph=chunk)), x, hop
    )


def build_stage(
    experiment: Experiment,
    outlines: Sequence[LayerSpec],
    parts: Sequence[range],
    timer: StepTimer,
) -> Stage:
    """Build the layers in `parts`, with the same initial values in every layout, for one seed.

    Several parts are no neighbours in the model.
    """
    modules = []
    model = experiment.model.loaded
    options = BuildOptions(getattr(torch, experiment.dtype), experiment.batchnorm)
    layers = [index for part in parts for index in part]
    with fork_generators():
        for index in layers:
            seed_all(layer_seed(experiment.seed, outlines[index].name))
            modules.append(model.build(outlines[index], options))
    changes = [row_changes(outlines[: part.start]) for part in parts]
    stage = Stage([outlines[i] for i in layers], modules, timer, changes[0])
    if len(parts) > 1:
        stage.apart = True
        stage._cut(stage_slices([len(part) for part in parts]), changes, timer)
    return stage


def layer_seed(seed: int, name: str) -> int:
    """A seed for each layer, so that a stage need not build the layers before it."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return int.from_bytes(digest[:7], "big")
