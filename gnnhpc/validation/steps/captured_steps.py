"""What ranks compute in a few steps, captured by torch's hooks on parts built for that purpose.

Activations are kept as sketches: the products of each row with two fixed random vectors. Two
different rows have equal sketches only by chance, and a sketch is small enough to send.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from gnnhpc.batches.batch import Batch
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.engines.stage import Stage
from gnnhpc.graphs.blocks import GraphChunk
from gnnhpc.graphs.node_features import SparseRows
from gnnhpc.models.model import Context
from gnnhpc.records.schema import Phase
from gnnhpc.training.events import Listener, StepTaken
from gnnhpc.training.setup import TrainingParts
from gnnhpc.validation.reference.batches import Ids
from gnnhpc.validation.reference.optimizer_rule import Array, State
from gnnhpc.validation.reference.sampling_rule import Edges

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
    trains: bool
    """Whether the layer is in training mode."""


@dataclass(frozen=True)
class CapturedTargets:
    """The targets of one micro-batch by split, and the nodes of its rows as above."""

    nodes: Ids | None
    targets: dict[str, Ids]


Kind = Literal["parameters", "buffers", "gradients"]


@dataclass
class Capture:
    """Everything that was captured on one rank, or on all of them."""

    tensors: dict[tuple[Kind, int, int, str], Array] = field(default_factory=dict)
    """(kind, step, replica, full name) -> what a replica holds before a training step, or the
    gradient in it."""
    states: dict[tuple[int, str], State] = field(default_factory=dict)
    """(replica, parameter) -> the optimizer's state before the first step."""
    evaluated_with: dict[tuple[int, str], Array] = field(default_factory=dict)
    """(replica, buffer) -> its value at the beginning of the evaluation."""
    activations: dict[tuple[Phase, int, str, Place], list[CapturedActivation]] = field(
        default_factory=dict
    )
    """(phase, step, layer, place) -> activations; several where a layer is recomputed."""
    targets: dict[tuple[Phase, int, Place], CapturedTargets] = field(default_factory=dict)
    outputs: dict[tuple[Phase, int, Place], Array] = field(default_factory=dict)
    """What the engine returned, on the stage that has the loss."""
    losses: dict[tuple[Phase, int, int], float] = field(default_factory=dict)
    """(phase, step, replica) -> the sum of the losses that were differentiated."""
    reported: dict[tuple[Phase, int, int], dict[str, float]] = field(default_factory=dict)
    """(phase, step, replica) -> the loss and metrics in the step's record."""
    edges: dict[tuple[int, int, int], list[Edges]] = field(default_factory=dict)
    """(step, replica, micro-batch) -> sampled edges of training steps, where a library samples
    them."""
    stage_of: dict[str, int] = field(default_factory=dict)
    """The stage of each layer that has parameters."""
    overwritten: dict[tuple[int, str, Place], bool] = field(default_factory=dict)
    """(step, first layer of a stage, place) -> whether its input changed before its backward."""

    @classmethod
    def of_all(cls, ranks: Iterable[Capture]) -> Capture:
        """What the stages of each replica captured, put together."""
        found = cls()
        for rank in ranks:
            for name, theirs in vars(rank).items():
                getattr(found, name).update(theirs)
        return found

    def named(self, kind: Kind, step: int, replica: int) -> dict[str, Array]:
        """A replica's tensors of a kind by full name."""
        where = kind, step, replica
        return {key[3]: value for key, value in self.tensors.items() if key[:3] == where}


class CapturesSteps(Listener):
    """Listens to a training loop and hooks the layers of a stage, and keeps a `Capture`."""

    def __init__(
        self,
        parts: TrainingParts,
        mesh: Mesh,
        after_hop: Collection[str],
        *,
        by_library: bool,
    ) -> None:
        """`after_hop` has the names of the first layer that uses neighbours, and of all after it.

        The first stage keeps the edges that are sampled `by_library`.
        """
        self.found = Capture()
        self._stage, self._optimizer = parts.stage, parts.optimizer
        self._keeps_edges = by_library and mesh.stage == 0
        self._after_hop = after_hop
        self._replica = mesh.replica
        self._phase: Phase = "train"
        stage = parts.stage
        of_stage = [name for name, _ in stage.named_parameters()]
        for spec in stage.specs:
            if any(name.startswith(f"{spec.name}.") for name in of_stage):
                self.found.stage_of[spec.name] = mesh.stage
        if mesh.stage == 0:
            # Before hooks of a custom layer, which may change its input.
            stage.layers[0].register_forward_pre_hook(
                lambda layer, given: self._keep(INPUT, layer, given, given[0]), prepend=True
            )
        for spec, layer in zip(stage.specs, stage.layers, strict=True):
            layer.register_forward_hook(functools.partial(self._keep, spec.name))
        for part in stage.virtual_stages:
            self._follow_input(part)

    def _follow_input(self, part: Stage) -> None:
        """Compare what a stage receives with what it is when its backward begins."""
        name, held = part.specs[0].name, dict[int, tuple[Tensor, Array]]()

        def keep(_: nn.Module, given: tuple[Any, Context]) -> None:
            x, context = given
            if isinstance(x, Tensor) and x.requires_grad:
                held[context.microbatch] = x, sketch(x)

        def backward_begins(context: Context) -> None:
            x, before = held.pop(context.microbatch)
            key = context.step, name, (self._replica, context.microbatch)
            self.found.overwritten[key] = not np.array_equal(sketch(x), before)

        def follow(_: nn.Module, given: tuple[Any, Context], output: Any) -> None:
            context = given[1]
            if context.microbatch in held and output.requires_grad:
                output.register_hook(lambda gradient: backward_begins(context))

        part.layers[0].register_forward_pre_hook(keep, prepend=True)
        part.layers[-1].register_forward_hook(follow)

    def training_begins(self, start: int) -> None:
        self._keep_tensors(start)
        for name, parameter in self._stage.named_parameters():
            state = self._optimizer.state.get(parameter, {}) if self._optimizer else {}
            self.found.states[self._replica, name] = {
                key: array_of(x) for key, x in state.items() if isinstance(x, Tensor)
            }

    def evaluation_begins(self) -> None:
        self._phase = "test"

    def evaluation_ended(self) -> None:
        self._phase = "train"

    def step_taken(self, taken: StepTaken) -> None:
        self._keep_batch(taken.phase, taken.batch)
        where, record = (taken.phase, taken.step, self._replica), taken.record
        for number, output in enumerate(taken.output.outputs):
            self.found.outputs[taken.phase, taken.step, (self._replica, number)] = array_of(output)
        if taken.output.outputs:
            loss = {} if record.loss is None else {"loss": record.loss}
            self.found.losses[where] = float(sum(taken.output.losses))
            self.found.reported[where] = dict(record.metrics) | loss
        if taken.phase == "train":
            for name, parameter in self._stage.named_parameters():
                if parameter.grad is not None:
                    gradient = array_of(parameter.grad)
                    self.found.tensors["gradients", taken.step, self._replica, name] = gradient
            self._keep_tensors(taken.step + 1)

    def _keep_tensors(self, step: int) -> None:
        """Keep what this rank holds before a training step."""
        for name, parameter in self._stage.named_parameters():
            self.found.tensors["parameters", step, self._replica, name] = array_of(parameter)
        for name, buffer in buffers_of(self._stage):
            self.found.tensors["buffers", step, self._replica, name] = array_of(buffer)

    def _keep_batch(self, phase: Phase, batch: Batch) -> None:
        for microbatch in batch.microbatches:
            context = microbatch.context
            place = self._replica, context.microbatch
            if self._keeps_edges and phase == "train":
                self.found.edges[context.step, *place] = _edges(context.chunk)
            if microbatch.targets:
                targets = {split: _copied(t) for split, t in microbatch.targets.items()}
                kept = CapturedTargets(_nodes(context, None), targets)
                self.found.targets[phase, context.step, place] = kept

    def _keep(self, name: str, layer: nn.Module, given: tuple[Any, ...], x: Any) -> None:
        context: Context = given[1]
        if self._phase == "test" and not self.found.evaluated_with:
            for key, buffer in buffers_of(self._stage):
                self.found.evaluated_with[self._replica, key] = array_of(buffer)
        where = self._phase, context.step, name, (self._replica, context.microbatch)
        self.found.activations.setdefault(where, []).append(
            CapturedActivation(
                self._nodes_of_rows(name, context, len(x)), sketch(x), layer.training
            )
        )

    def _nodes_of_rows(self, layer: str, context: Context, rows: int) -> Ids | None:
        """The node of each row. Hidden rows of all nodes, computed layer by layer, are in the order
        of nodes, whatever the order of the input."""
        chunk = context.graph
        is_layerwise = chunk is not None and chunk.row_blocks is not None
        if is_layerwise and layer in self._after_hop and rows == len(context.chunk.nodes):
            return np.arange(rows)
        return _nodes(context, rows)


def row_of_values(x: SparseRows) -> Tensor:
    """int64 [stored]: the row of each stored value."""
    return torch.repeat_interleave(torch.arange(len(x)), x.indptr.diff().cpu())


def sketch(x: Any) -> npt.NDArray[np.float64]:
    """float64 [rows, 2] of an activation [rows, ...], stored in any form."""
    if isinstance(x, SparseRows):
        terms = x.values.double().cpu()[:, None] * _vectors(x.width)[x.columns.cpu()]
        zeros = torch.zeros(len(x), _VECTORS, dtype=torch.float64)
        return zeros.index_add(0, row_of_values(x), terms).numpy()
    held: Tensor = x if isinstance(x, Tensor) else x.to_dense()
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


def buffers_of(module: nn.Module) -> list[tuple[str, Tensor]]:
    return list(module.named_buffers(remove_duplicate=False))


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
