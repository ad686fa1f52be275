"""What a rank computes in a few steps, captured by torch's hooks on parts built for that purpose.

Activations are kept as sketches: the products of each row with two fixed random vectors. Two
different rows have equal sketches only by chance, and a sketch is small enough to send.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from gnnhpc.batches.batch import Batch
from gnnhpc.engines.stage import Stage
from gnnhpc.graphs.blocks import GraphChunk
from gnnhpc.graphs.sparse_rows import SparseRows
from gnnhpc.models.context import Context
from gnnhpc.records.schema import Phase
from gnnhpc.training.events import Listener, StepTaken
from gnnhpc.validation.reference.forward_pass import SparseFeatures
from gnnhpc.validation.reference.micro_batches import Ids, SampledEdges
from gnnhpc.validation.reference.model import Array
from gnnhpc.validation.reference.optimizer_rule import Moments

INPUT = ""
"""Stands for the first layer's input among the names of layers."""
_VECTORS = 2


@dataclass(frozen=True)
class CapturedActivation:
    """One layer's output for one micro-batch, or the first layer's input."""

    phase: Phase
    step: int
    layer: str
    replica: int
    microbatch: int
    nodes: Ids | None
    """The nodes of one graph, -1 for padding; None for images and small graphs, whose rows are in
    the order of the micro-batch."""
    sketch: npt.NDArray[np.float64]
    """[rows, 2]"""
    trains: bool
    """Whether the layer is in training mode."""


@dataclass(frozen=True)
class CapturedTargets:
    """The targets of one micro-batch, and the nodes of its rows as above."""

    phase: Phase
    step: int
    replica: int
    microbatch: int
    nodes: Ids | None
    targets: dict[str, Ids]


@dataclass(frozen=True)
class CapturedStep:
    """What one training step or evaluation left behind on one rank."""

    phase: Phase
    step: int
    loss: float
    """The sum of the losses that were differentiated: this replica's, 0 without the loss."""
    outputs: list[Array]
    """The engine's outputs, one a micro-batch; empty without the loss."""
    reported: dict[str, float]
    """The loss and metrics in the step's record."""
    gradients: dict[str, Array]
    parameters: dict[str, Array]
    buffers: dict[str, Array]


@dataclass
class RankCapture:
    """Everything that was captured on one rank, in order."""

    replica: int
    stage: int
    parameters: dict[str, Array]
    """Before the first step, as are buffers and moments."""
    buffers: dict[str, Array]
    moments: dict[str, Moments]
    activations: list[CapturedActivation] = field(default_factory=list)
    targets: list[CapturedTargets] = field(default_factory=list)
    edges: list[SampledEdges] = field(default_factory=list)
    """Of training steps, where a library samples them."""
    steps: list[CapturedStep] = field(default_factory=list)
    evaluated_with: dict[str, Array] = field(default_factory=dict)
    """Buffers at the beginning of the evaluation."""


class CapturedSteps(Listener):
    """Listens to a training loop and hooks the layers of a stage, and keeps a `RankCapture`."""

    def __init__(
        self,
        stage: Stage,
        optimizer: torch.optim.Optimizer | None,
        replica: int,
        number: int,
        *,
        keeps_edges: bool = False,
    ) -> None:
        self._stage, self._keeps_edges = stage, keeps_edges and number == 0
        self._phase: Phase = "train"
        self.rank = RankCapture(
            replica,
            number,
            arrays(stage.named_parameters()),
            arrays(buffers_of(stage)),
            _moments(stage, optimizer),
        )
        if number == 0:
            # Before hooks of a custom layer, which may change its input.
            stage.layers[0].register_forward_pre_hook(self._keep_input, prepend=True)
        for spec, layer in zip(stage.specs, stage.layers, strict=True):
            layer.register_forward_hook(functools.partial(self._keep_output, spec.name))

    def evaluation_begins(self) -> None:
        self._phase = "test"

    def evaluation_ended(self) -> None:
        self._phase = "train"

    def step_taken(self, taken: StepTaken) -> None:
        self._keep_batch(taken.phase, taken.batch)
        trained = self._stage.named_parameters() if taken.phase == "train" else []
        trained = list(trained)
        record = taken.record
        reported = dict(record.metrics)
        if record.loss is not None:
            reported["loss"] = record.loss
        self.rank.steps.append(
            CapturedStep(
                taken.phase,
                taken.step,
                float(sum(taken.output.losses)),
                [array_of(output) for output in taken.output.outputs],
                reported,
                arrays((name, p.grad) for name, p in trained if p.grad is not None),
                arrays(trained),
                arrays(buffers_of(self._stage)) if taken.phase == "train" else {},
            )
        )

    def _keep_batch(self, phase: Phase, batch: Batch) -> None:
        for microbatch in batch.microbatches:
            context = microbatch.context
            place = context.step, self.rank.replica, context.microbatch
            if self._keeps_edges and phase == "train":
                self.rank.edges.append(SampledEdges(*place, _edges(context.chunk)))
            if microbatch.targets:
                targets = {split: _copied(t) for split, t in microbatch.targets.items()}
                nodes = _nodes(context, None)
                self.rank.targets.append(CapturedTargets(phase, *place, nodes, targets))

    def _keep_input(self, layer: nn.Module, given: tuple[Any, ...]) -> None:
        self._keep(INPUT, layer, given[0], given[1])

    def _keep_output(
        self, name: str, layer: nn.Module, given: tuple[Any, ...], output: Any
    ) -> None:
        self._keep(name, layer, output, given[1])

    def _keep(self, name: str, layer: nn.Module, x: Any, context: Context) -> None:
        if self._phase == "test" and not self.rank.evaluated_with:
            self.rank.evaluated_with = arrays(buffers_of(self._stage))
        self.rank.activations.append(
            CapturedActivation(
                self._phase,
                context.step,
                name,
                self.rank.replica,
                context.microbatch,
                _nodes(context, len(x)),
                sketch(x),
                layer.training,
            )
        )


def sketch(x: Any) -> npt.NDArray[np.float64]:
    """float64 [rows, 2] of an activation [rows, ...], stored in any form."""
    if isinstance(x, SparseRows):
        rows = torch.repeat_interleave(torch.arange(len(x)), x.indptr.diff().cpu())
        values, columns, width = x.values, x.columns.cpu(), x.width
    elif isinstance(x, SparseFeatures):
        rows, values, columns, width = x.row, x.value, x.column, x.shape[1]
    else:
        held: Tensor = x if isinstance(x, Tensor) else x.to_dense()
        flat = held.detach().flatten(1).double().cpu()
        return (flat @ _vectors(flat.shape[1])).numpy()
    terms = values.detach().double().cpu()[:, None] * _vectors(width)[columns]
    return torch.zeros(x.shape[0], _VECTORS).double().index_add(0, rows, terms).numpy()


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


def arrays(tensors: Any) -> dict[str, Array]:
    return {name: array_of(tensor) for name, tensor in tensors}


def buffers_of(module: nn.Module) -> list[tuple[str, Tensor]]:
    return list(module.named_buffers(remove_duplicate=False))


def _moments(stage: Stage, optimizer: torch.optim.Optimizer | None) -> dict[str, Moments]:
    found = {}
    for name, parameter in stage.named_parameters():
        state: Mapping[str, Tensor] = optimizer.state.get(parameter, {}) if optimizer else {}
        if "exp_avg" in state:
            moments = array_of(state["exp_avg"]), array_of(state["exp_avg_sq"])
            found[name] = Moments(*moments, float(state["step"]))
    return found


def _edges(chunk: GraphChunk) -> list[tuple[Ids, Ids, Ids]]:
    nodes, layers = chunk.nodes.cpu(), []
    for block in chunk.present_blocks:
        others = (block.source != block.target).cpu()
        ends: Sequence[Tensor] = (block.source, block.target)
        source, target = (nodes[end.cpu()[others].long()].numpy() for end in ends)
        layers.append((source, target, block.edge.cpu()[others].long().numpy()))
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
