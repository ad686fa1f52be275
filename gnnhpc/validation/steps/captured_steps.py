"""What ranks compute in a few steps, captured by torch's hooks on parts built for that purpose.

Activations are kept as sketches: the products of each row with two fixed random vectors. Two
different rows have equal sketches only by chance, and a sketch is small enough to send.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from gnnhpc.batches.batch import Batch
from gnnhpc.engines.stage import Stage
from gnnhpc.graphs.blocks import GraphChunk
from gnnhpc.graphs.node_features import SparseRows
from gnnhpc.models.context import Context
from gnnhpc.records.schema import Phase
from gnnhpc.training.events import Listener, StepTaken
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


@dataclass
class Held:
    """What a replica holds: parameters and buffers by full name, and the optimizer's state."""

    parameters: dict[str, Array] = field(default_factory=dict)
    buffers: dict[str, Array] = field(default_factory=dict)
    states: dict[str, State] = field(default_factory=dict)


@dataclass
class CapturedStep:
    """What one training step or evaluation left behind on a replica."""

    loss: float = 0.0
    """The sum of the losses that were differentiated."""
    outputs: list[Array] = field(default_factory=list)
    """The engine's outputs, one a micro-batch; empty without the loss."""
    reported: dict[str, float] = field(default_factory=dict)
    """The loss and metrics in the step's record, of the rank that has outputs."""
    gradients: dict[str, Array] = field(default_factory=dict)
    after: Held = field(default_factory=Held)


@dataclass
class Capture:
    """Everything that was captured on one rank, or on all of them."""

    start: dict[int, Held] = field(default_factory=dict)
    """Replica -> its tensors before the first step."""
    activations: dict[tuple[Phase, int, str, Place], list[CapturedActivation]] = field(
        default_factory=dict
    )
    """(phase, step, layer, place) -> activations; several where a layer is recomputed."""
    targets: dict[tuple[Phase, int, Place], CapturedTargets] = field(default_factory=dict)
    edges: dict[tuple[int, int, int], list[Edges]] = field(default_factory=dict)
    """(step, replica, micro-batch) -> sampled edges of training steps, where a library samples
    them."""
    steps: dict[tuple[Phase, int, int], CapturedStep] = field(default_factory=dict)
    """(phase, step, replica) -> what was captured."""
    evaluated_with: dict[int, dict[str, Array]] = field(default_factory=dict)
    """Replica -> buffers at the beginning of the evaluation."""
    stage_of: dict[str, int] = field(default_factory=dict)
    """The stage of each layer that has parameters."""
    overwritten: dict[tuple[int, str, Place], bool] = field(default_factory=dict)
    """(step, first layer of a stage, place) -> whether its input changed before its backward."""

    @classmethod
    def of_all(cls, ranks: Iterable[Capture]) -> Capture:
        """What the stages of each replica captured, put together."""
        found = cls()
        for rank in ranks:
            _join(found, rank)
        return found


def _join(one: Any, other: Any) -> None:
    """Add what `other` holds to `one`: entries of dicts, and what is not there yet."""
    for name, theirs in vars(other).items():
        ours = getattr(one, name)
        if isinstance(ours, dict):
            for key, value in theirs.items():
                if key in ours and isinstance(value, dict):
                    ours[key] |= value
                elif key in ours and isinstance(value, Held | CapturedStep):
                    _join(ours[key], value)
                else:
                    ours[key] = value
        elif isinstance(ours, Held):
            _join(ours, theirs)
        elif isinstance(ours, float):
            setattr(one, name, ours + theirs)
        else:
            setattr(one, name, ours or theirs)


class CapturesSteps(Listener):
    """Listens to a training loop and hooks the layers of a stage, and keeps a `Capture`."""

    def __init__(
        self,
        stage: Stage,
        optimizer: torch.optim.Optimizer | None,
        replica: int,
        number: int,
        after_hop: Collection[str],
        *,
        keeps_edges: bool = False,
    ) -> None:
        """`number` is the stage's; `keeps_edges` on the first stage, where a library samples.

        `after_hop` has the names of the first layer that uses neighbours, and of all after it.
        """
        self._stage, self._keeps_edges = stage, keeps_edges and number == 0
        self._after_hop = after_hop
        self._replica = replica
        self._phase: Phase = "train"
        states = _states(stage, optimizer)
        start = Held(arrays(stage.named_parameters()), arrays(buffers_of(stage)), states)
        of_stage = [name for name, _ in stage.named_parameters()]
        self.found = Capture({replica: start})
        for spec in stage.specs:
            if any(name.startswith(f"{spec.name}.") for name in of_stage):
                self.found.stage_of[spec.name] = number
        if number == 0:
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

    def evaluation_begins(self) -> None:
        self._phase = "test"

    def evaluation_ended(self) -> None:
        self._phase = "train"

    def step_taken(self, taken: StepTaken) -> None:
        self._keep_batch(taken.phase, taken.batch)
        outputs = [array_of(output) for output in taken.output.outputs]
        step = CapturedStep(float(sum(taken.output.losses)), outputs)
        if outputs:
            loss = {} if taken.record.loss is None else {"loss": taken.record.loss}
            step.reported = dict(taken.record.metrics) | loss
        if taken.phase == "train":
            trained = dict(self._stage.named_parameters())
            step.gradients = arrays((n, p.grad) for n, p in trained.items() if p.grad is not None)
            step.after = Held(arrays(trained.items()), arrays(buffers_of(self._stage)))
        self.found.steps[taken.phase, taken.step, self._replica] = step

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
            self.found.evaluated_with[self._replica] = arrays(buffers_of(self._stage))
        key = self._phase, context.step, name, (self._replica, context.microbatch)
        self.found.activations.setdefault(key, []).append(
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


def arrays(tensors: Iterable[tuple[str, Tensor]]) -> dict[str, Array]:
    return {name: array_of(tensor) for name, tensor in tensors}


def buffers_of(module: nn.Module) -> list[tuple[str, Tensor]]:
    return list(module.named_buffers(remove_duplicate=False))


def _states(stage: Stage, optimizer: torch.optim.Optimizer | None) -> dict[str, State]:
    found: dict[str, State] = {}
    for name, parameter in stage.named_parameters():
        state: Mapping[str, Any] = optimizer.state.get(parameter, {}) if optimizer else {}
        found[name] = {key: array_of(x) for key, x in state.items() if isinstance(x, Tensor)}
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
