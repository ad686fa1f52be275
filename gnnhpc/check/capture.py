"""What a rank really computes in a few steps, taken from its engine, stage and optimizer.

Activations are kept as sketches, each row's products with two fixed vectors of signs: two
different rows have equal sketches by chance only, and a sketch is small enough to send.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from gnnhpc.batches.batch import Batch
from gnnhpc.check.outputs_apart import bounded
from gnnhpc.check.watches.optimizer_rule import OptimizerState
from gnnhpc.core.layer_specs import LayerSpec
from gnnhpc.engines.base import Engine, StageGradients, StepOutput
from gnnhpc.engines.stage import Stage
from gnnhpc.graphs.blocks import GraphChunk
from gnnhpc.graphs.features import Rows
from gnnhpc.graphs.indexed_rows import IndexedRows
from gnnhpc.graphs.sparse_rows import SparseRows
from gnnhpc.kernels.dropped_rows import DroppedRows
from gnnhpc.models.context import Context
from gnnhpc.models.layers.batchnorm import is_recomputing
from gnnhpc.models.set_buffers import all_buffers
from gnnhpc.records.schema import Phase, StepRecord

Array = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]
SKETCHES = 2
INPUT = ""
"""The name, among those of layers, of the first layer's input."""


@dataclass(frozen=True)
class SeenActivation:
    """One layer's output for one micro-batch, or the first layer's input."""

    phase: Phase
    step: int
    layer: str
    replica: int
    microbatch: int
    ids: Ids | None
    """A graph's node numbers, -1 for padding; None for images and for many small graphs, whose rows
    are in the order of a rule."""
    sketch: Array
    """[rows, SKETCHES]"""


@dataclass(frozen=True)
class SeenTargets:
    """The labels that the loss of one micro-batch is taken of."""

    phase: Phase
    step: int
    replica: int
    microbatch: int
    ids: Ids | None
    targets: dict[str, Ids]


@dataclass(frozen=True)
class SeenEdges:
    """What a library drew for one sampled micro-batch, which no twin can draw again."""

    step: int
    replica: int
    microbatch: int
    layers: list[tuple[Ids, Ids, Ids]]
    """Of each layer that uses neighbours, the input's first: sources, targets and numbers in the
    graph of its edges, self-loops aside."""


@dataclass(frozen=True)
class SeenStep:
    """One training step of one stage."""

    loss: float
    """What was differentiated: this replica's part; 0 where the stage is not the last."""
    gradients: dict[str, Array]
    parameters: dict[str, Array]
    """After the step."""
    buffers: dict[str, Array]
    """After the step."""


@dataclass
class RankSeen:
    """All of one rank, in order."""

    replica: int
    stage: int
    initial: dict[str, Array]
    """Parameters before the first step."""
    buffers: dict[str, Array]
    """Before the first step."""
    optimizer: dict[str, OptimizerState]
    """Before the first step; without a state of its own a parameter is left out."""
    steps: list[SeenStep] = field(default_factory=list)
    activations: list[SeenActivation] = field(default_factory=list)
    targets: list[SeenTargets] = field(default_factory=list)
    edges: list[SeenEdges] = field(default_factory=list)
    """Of training steps, where a library draws them."""
    evaluation_buffers: dict[str, Array] = field(default_factory=dict)
    """Those that the evaluation used."""
    kinds: dict[str, torch.dtype] = field(default_factory=dict)
    """Of the buffers before the first step: what kind of number."""


def signs(width: int) -> Tensor:
    """float64 [width, SKETCHES] of 1 and -1, always the same."""
    generator = torch.Generator().manual_seed(width)
    drawn = torch.randint(0, 2, (width, SKETCHES), generator=generator)
    return drawn.double() * 2 - 1


def sketch(x: Tensor | SparseRows | IndexedRows | DroppedRows) -> Tensor:
    """float64 [rows, SKETCHES] of an activation [rows, ...]."""
    if isinstance(x, DroppedRows | IndexedRows):
        x = x.to_dense()
    if isinstance(x, SparseRows):
        rows = torch.repeat_interleave(torch.arange(len(x)), x.indptr.diff().cpu())
        terms = x.values.detach().double().cpu()[:, None] * signs(x.width)[x.columns.cpu()]
        return torch.zeros(len(x), SKETCHES).double().index_add(0, rows, terms)
    flat = bounded(x.detach().flatten(1).double().cpu())
    return flat @ signs(flat.shape[1])


class CapturingEngine:
    """Runs the steps of another engine and keeps what it was given, computed and returned."""

    def __init__(
        self, engine: Engine, stage: Stage, seen: RankSeen, *, keeps_edges: bool = False
    ) -> None:
        self.engine, self.stage, self.seen = engine, stage, seen
        self._keeps_edges = keeps_edges
        self._loss = 0.0
        self._phase: Phase = "train"
        self._keeps = False
        for part in stage.parts:
            part.on_layer.append(self._keep_output)
        if seen.stage == 0:
            # Before the hooks of a user's layer, which may change what it is given.
            stage.layers[0].register_forward_pre_hook(self._keep_input, prepend=True)

    @property
    def gradients(self) -> StageGradients:
        return self.engine.gradients

    def train_step(self, batch: Batch) -> StepOutput:
        self._begin("train", batch)
        output = self.engine.train_step(batch)
        self._keeps = False
        self._loss = float(sum(output.losses))
        return output

    def evaluate(self, batch: Batch) -> Sequence[Tensor]:
        self._begin("test", batch)
        self.seen.evaluation_buffers = _arrays(all_buffers(self.stage).items())
        outputs = self.engine.evaluate(batch)
        self._keeps = False
        return outputs

    def _begin(self, phase: Phase, batch: Batch) -> None:
        self._phase, self._keeps = phase, True
        for microbatch in batch.microbatches:
            context = microbatch.context
            if self._keeps_edges and phase == "train" and self.seen.stage == 0:
                replica, m = self.seen.replica, context.microbatch
                layers = _edges(context.chunk)
                self.seen.edges.append(SeenEdges(context.step, replica, m, layers))
            if microbatch.targets:
                self.seen.targets.append(
                    SeenTargets(
                        phase,
                        context.step,
                        self.seen.replica,
                        context.microbatch,
                        node_ids(context, None),
                        {split: t.cpu().numpy().copy() for split, t in microbatch.targets.items()},
                    )
                )

    def keep(
        self, layer: str, x: Tensor | SparseRows | IndexedRows | DroppedRows, context: Context
    ) -> None:
        """Not of what a watch evaluates again, nor of what backward computes again."""
        if not self._keeps or is_recomputing():
            return
        found = sketch(x).numpy()
        self.seen.activations.append(
            SeenActivation(
                self._phase,
                context.step,
                layer,
                self.seen.replica,
                context.microbatch,
                node_ids(context, len(x)),
                found,
            )
        )

    def keep_step(self, record: StepRecord) -> None:
        """After a step, training or evaluation: what a training step left behind."""
        if record.phase == "train":
            stage = self.stage
            self.seen.steps.append(
                SeenStep(
                    self._loss,
                    _arrays((n, p.grad) for n, p in stage.named_parameters() if p.grad is not None),
                    _arrays(stage.named_parameters()),
                    _arrays(all_buffers(stage).items()),
                )
            )

    def _keep_input(self, layer: nn.Module, given: tuple[Any, ...]) -> None:
        self.keep(INPUT, given[0], given[1])

    def _keep_output(
        self, layer: LayerSpec, _changes: int, _x: Rows, output: Rows, context: Context
    ) -> None:
        self.keep(layer.name, output, context)


def first_seen(
    stage: Stage, optimizer: torch.optim.Optimizer | None, replica: int, number: int
) -> RankSeen:
    """Before the first step."""
    found = all_buffers(stage)
    return RankSeen(
        *(replica, number, _arrays(stage.named_parameters()), _arrays(found.items())),
        _optimizer_states(stage, optimizer),
        kinds={name: buffer.dtype for name, buffer in found.items()},
    )


def _optimizer_states(
    stage: Stage, optimizer: torch.optim.Optimizer | None
) -> dict[str, OptimizerState]:
    """Each parameter's state, by name; gradients are not part of it."""
    found: dict[str, OptimizerState] = {}
    for name, parameter in stage.named_parameters():
        state = optimizer.state.get(parameter) if optimizer is not None else None
        if state:
            held = _arrays(state.items())
            value = np.array(parameter.detach().cpu().double().numpy())
            found[name] = OptimizerState(
                value,
                np.zeros_like(value),
                held["exp_avg"],
                held["exp_avg_sq"],
                np.full_like(value, held["step"]),
            )
    return found


def _arrays(tensors: Any) -> dict[str, Array]:
    return {name: np.array(array_of(t)) for name, t in tensors}


def array_of(x: Tensor) -> Array:
    """In float64, or complex128 of a user's complex buffer; long whole numbers as they are, of
    which float64 has but those below 2**53."""
    wide = torch.complex128 if x.is_complex() else torch.float64
    kept = x.dtype in (torch.int64, torch.uint64)
    found: Array = x.detach().cpu().to(x.dtype if kept else wide).numpy()
    return found


def _edges(chunk: GraphChunk) -> list[tuple[Ids, Ids, Ids]]:
    nodes, layers = chunk.nodes.cpu(), []
    for block in chunk.present_blocks:
        others = (block.source != block.target).cpu()
        source, target = (nodes[t.cpu()[others]].numpy() for t in (block.source, block.target))
        layers.append((source, target, block.edge.cpu()[others].numpy()))
    return layers


def node_ids(context: Context, rows: int | None) -> Ids | None:
    """Of the first rows of a micro-batch of one graph, to be kept."""
    if context.graph is None or context.graph.graphs is not None:
        return None
    # A copy: what shows a part of a sampled mini-batch keeps its buffer from being used again.
    found: Ids = context.graph.nodes[:rows].cpu().numpy().copy()
    return found
