"""What ranks compute in a few steps, captured by torch's hooks on parts built for that purpose.

Activations are kept as sketches: the products of each row with two fixed random vectors. Two
different rows have equal sketches only by chance, and a sketch is small enough to send.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from gnnhpc.distributed.mesh import Mesh
from gnnhpc.engines.stage import Stage
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.graphs.blocks import GraphChunk
from gnnhpc.graphs.node_features import SparseRows
from gnnhpc.models.model import Context
from gnnhpc.records.schema import Phase
from gnnhpc.training.listeners import Listener, StepTaken
from gnnhpc.training.setup import TrainingParts
from gnnhpc.validation.reference.batches import Array, Ids
from gnnhpc.validation.reference.sampling_rule import Edges
from gnnhpc.validation.reference.training_step import State

INPUT = ""
"""Stands for the first layer's input among the names of layers."""
_VECTORS = 2
Place = tuple[int, int]
"""A replica and a micro-batch."""


@dataclass(frozen=True)
class CapturedActivation:
    """One layer's output for one micro-batch, or the first layer's input."""

    nodes: Ids | None
    """The nodes of one graph, -1 for padding; None for images and small graphs, whose rows are in
    the order of the micro-batch."""
    sketch: npt.NDArray[np.float64]
    """[rows, 2]"""


@dataclass(frozen=True)
class CapturedOutput:
    """What the engine returned for one micro-batch, and the targets of the same rows by split."""

    nodes: Ids | None
    """As above."""
    targets: dict[str, Ids]
    output: Array


Kind = Literal["parameters", "buffers", "gradients", "evaluated"]


@dataclass
class Capture:
    """Everything that was captured on one rank, or on all of them."""

    tensors: dict[tuple[Kind, int, int], dict[str, Array]] = field(default_factory=dict)
    """(kind, step, replica) -> by full name what a replica holds before a training step, the
    gradients in it, or the buffers that it evaluates with (step 0)."""
    states: dict[int, dict[str, State]] = field(default_factory=dict)
    """Replica -> the optimizer's state of each parameter before the first step."""
    activations: dict[tuple[Phase, int, str, Place], list[CapturedActivation]] = field(
        default_factory=dict
    )
    """(phase, step, layer, place) -> activations; several where a layer is recomputed."""
    outputs: dict[tuple[Phase, int, Place], CapturedOutput] = field(default_factory=dict)
    """On the stage that has the loss."""
    losses: dict[tuple[Phase, int, int], float] = field(default_factory=dict)
    """(phase, step, replica) -> the sum of the losses that were differentiated."""
    reported: dict[tuple[Phase, int, int], dict[str, float]] = field(default_factory=dict)
    """(phase, step, replica) -> the loss and metrics in the step's record."""
    edges: dict[tuple[int, int, int], list[Edges]] = field(default_factory=dict)
    """(step, replica, micro-batch) -> sampled edges of training steps, where a library samples
    them."""
    stage_of: dict[str, int] = field(default_factory=dict)
    """The stage of each parameter."""
    overwritten: dict[int, str] = field(default_factory=dict)
    """Step -> which stage's input changed before its backward, in words."""

    @classmethod
    def of_all(cls, ranks: Iterable[Capture]) -> Capture:
        """What the stages of each replica captured, put together."""
        found = cls()
        for rank in ranks:
            for name, theirs in vars(rank).items():
                ours = getattr(found, name)
                for key, value in theirs.items():
                    ours[key] = ours.get(key, {}) | value if isinstance(value, dict) else value
        return found


class CapturesSteps(Listener):
    """Listens to a training loop and hooks the layers of a stage, and keeps a `Capture`."""

    def __init__(self, experiment: Experiment, parts: TrainingParts, mesh: Mesh) -> None:
        self.found = Capture()
        self._stage, self._optimizer = parts.stage, parts.optimizer
        sampling = experiment.sampling
        by_library = sampling is not None and sampling.sampler != "ours"
        self._keeps_edges = by_library and mesh.stage == 0
        before_hop = itertools.takewhile(lambda spec: spec.rows != "hop", parts.layer_specs)
        self._before_hop = {INPUT, *(spec.name for spec in before_hop)}
        self._replica = mesh.replica
        self._phase: Phase = "train"
        stage = parts.stage
        self.found.stage_of = {name: mesh.stage for name, _ in stage.named_parameters()}
        for spec, layer in zip(stage.specs, stage.layers, strict=True):
            layer.register_forward_hook(functools.partial(self._keep, spec.name))
        if mesh.stage == 0:
            # Before hooks of a custom layer, which may change its input.
            stage.layers[0].register_forward_pre_hook(
                lambda layer, inputs: self._keep(INPUT, layer, inputs, inputs[0]), prepend=True
            )
        for part in stage.virtual_stages:
            self._follow_input(part)

    def _follow_input(self, part: Stage) -> None:
        """Compare what a stage receives with what it is when its backward begins."""
        held = dict[int, tuple[Tensor, Array]]()

        def keep(_: nn.Module, inputs: tuple[Any, Context]) -> None:
            x, context = inputs
            if isinstance(x, Tensor) and x.requires_grad:
                held[context.microbatch] = x, sketch(x)

        def backward_begins(context: Context) -> None:
            x, before = held.pop(context.microbatch)
            if not np.array_equal(sketch(x), before):
                self.found.overwritten[context.step] = (
                    f"{in_words((self._replica, context.microbatch))}, the input of "
                    f"{part.specs[0].name}, the first layer of its stage, was overwritten"
                )

        def follow(_: nn.Module, inputs: tuple[Any, Context], output: Any) -> None:
            context = inputs[1]
            if context.microbatch in held and output.requires_grad:
                output.register_hook(lambda gradient: backward_begins(context))

        part.layers[0].register_forward_pre_hook(keep, prepend=True)
        part.layers[-1].register_forward_hook(follow)

    def training_begins(self, start: int) -> None:
        self._keep_stage(start)
        states = self._optimizer.state if self._optimizer else {}
        self.found.states[self._replica] = {
            name: {
                key: array_of(x)
                for key, x in states.get(parameter, {}).items()
                if isinstance(x, Tensor)
            }
            for name, parameter in self._stage.named_parameters()
        }

    def evaluation_begins(self) -> None:
        self._phase = "test"
        self._keep_tensors("evaluated", 0, self._stage.named_buffers(remove_duplicate=False))

    def evaluation_ended(self) -> None:
        self._phase = "train"

    def step_taken(self, taken: StepTaken) -> None:
        where, record = (taken.phase, taken.step, self._replica), taken.record
        for microbatch, output in zip(taken.batch.microbatches, taken.output.outputs, strict=False):
            context = microbatch.context
            place = self._replica, context.microbatch
            targets = {split: _copied(t) for split, t in microbatch.targets.items()}
            kept = CapturedOutput(_nodes(context, None), targets, array_of(output))
            self.found.outputs[taken.phase, context.step, place] = kept
        if taken.output.outputs:
            loss = {} if record.loss is None else {"loss": record.loss}
            self.found.losses[where] = float(sum(taken.output.losses))
            self.found.reported[where] = dict(record.metrics) | loss
        if taken.phase == "train":
            parameters = self._stage.named_parameters()
            gradients = [(name, p.grad) for name, p in parameters if p.grad is not None]
            self._keep_tensors("gradients", taken.step, gradients)
            self._keep_stage(taken.step + 1)
            for microbatch in taken.batch.microbatches if self._keeps_edges else ():
                context = microbatch.context
                key = context.step, self._replica, context.microbatch
                self.found.edges[key] = _edges(context.chunk)

    def _keep_stage(self, step: int) -> None:
        """Keep what this rank holds before a training step."""
        self._keep_tensors("parameters", step, self._stage.named_parameters())
        self._keep_tensors("buffers", step, self._stage.named_buffers(remove_duplicate=False))

    def _keep_tensors(self, kind: Kind, step: int, named: Iterable[tuple[str, Tensor]]) -> None:
        tensors = {name: array_of(tensor) for name, tensor in named}
        self.found.tensors[kind, step, self._replica] = tensors

    def _keep(self, name: str, _: nn.Module, inputs: tuple[Any, ...], x: Any) -> None:
        context: Context = inputs[1]
        where = self._phase, context.step, name, (self._replica, context.microbatch)
        nodes = self._nodes_of_rows(name, context, len(x))
        self.found.activations.setdefault(where, []).append(CapturedActivation(nodes, sketch(x)))

    def _nodes_of_rows(self, layer: str, context: Context, rows: int) -> Ids | None:
        """The node of each row. Hidden rows of all nodes, computed layer by layer, are in the order
        of nodes, whatever the order of the input."""
        chunk = context.graph
        is_layerwise = chunk is not None and chunk.row_blocks is not None
        if is_layerwise and layer not in self._before_hop and rows == len(context.chunk.nodes):
            return np.arange(rows)
        return _nodes(context, rows)


def in_words(place: Place) -> str:
    return f"micro-batch {place[1]} of replica {place[0]}"


def sketch(x: Any) -> npt.NDArray[np.float64]:
    """float64 [rows, 2] of an activation [rows, ...], stored in any form."""
    if isinstance(x, SparseRows):
        return (x.to_csr().double().cpu() @ _vectors(x.width)).numpy()
    held: Tensor = x if isinstance(x, Tensor) else x.to_dense()
    if held.is_cuda:
        # It may wait for another rank, which the watchdog recognizes here, and not in a copy.
        torch.cuda.current_stream(held.device).synchronize()
    flat = held.detach().flatten(1).double().cpu()
    return (flat @ _vectors(flat.shape[1])).numpy()


@functools.lru_cache(maxsize=64)
def _vectors(width: int) -> Tensor:
    """float64 [width, 2], the same on every machine."""
    generator = torch.Generator().manual_seed(width)
    return torch.rand(width, _VECTORS, generator=generator, dtype=torch.float64) * 2 - 1


def array_of(x: Tensor) -> Array:
    """A copy as float64, or complex128 of complex numbers."""
    wide = torch.complex128 if x.is_complex() else torch.float64
    found: Array = np.array(x.detach().to_dense().cpu().to(wide).numpy())
    return found


def _edges(chunk: GraphChunk) -> list[Edges]:
    nodes, layers = chunk.nodes.cpu(), []
    for block in reversed(chunk.present_blocks):
        others = (block.source != block.target).cpu()
        source, target = (nodes[end.cpu()[others].long()] for end in (block.source, block.target))
        layers.append((source, target, block.edge.cpu()[others].long()))
    return layers


def _nodes(context: Context, rows: int | None) -> Ids | None:
    """The nodes of the first rows of a micro-batch of one graph."""
    if context.graph is None or context.graph.graphs is not None:
        return None
    return _copied(context.graph.nodes[:rows])


def _copied(x: Tensor) -> Ids:
    """A copy: batches that are made in advance use their buffers again."""
    found: Ids = np.array(x.cpu().numpy())
    return found
