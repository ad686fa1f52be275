"""What every engine is given and what it gives back.

The loss of a step is the sum over its labelled samples, divided by how many there are over all
replicas, so micro-batches and replicas of any size add up to the sequential gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gnnhpc.core.errors import GnnhpcError
from gnnhpc.core.schedule import ScheduleName
from gnnhpc.engines.stage import Stage
from gnnhpc.engines.timing import StepTimer
from gnnhpc.ranks.mesh import Mesh

IGNORED = -100
"""The target of a row that has no label to learn: padding, or another split's node."""


@dataclass(frozen=True)
class Loss:
    """Cross-entropy summed over labelled rows and divided by `labelled / replicas`.

    Replicas average their gradients, so a replica divides by its share of the global count.
    `outputs` says whether the last layer gives logits or log-probabilities.
    """

    outputs: str
    labelled: int
    replicas: int

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        return self.summed(output, target) / (self.labelled / self.replicas)

    def summed(self, output: Tensor, target: Tensor) -> Tensor:
        if self.outputs == "log_probabilities":
            return F.nll_loss(output, target, reduction="sum", ignore_index=IGNORED)
        return F.cross_entropy(output, target, reduction="sum", ignore_index=IGNORED)


@dataclass(frozen=True)
class Plan:
    """One rank's part of a step: its stage, its shapes, its schedule."""

    stage: Stage
    mesh: Mesh
    timer: StepTimer
    loss: Loss
    microbatches: int
    schedule: ScheduleName
    input_shape: tuple[int, ...]
    """Of one micro-batch entering this stage."""
    output_shape: tuple[int, ...]
    """Of one micro-batch leaving it."""
    dtype: torch.dtype
    upstream_learns: bool
    """Whether any earlier stage has parameters, and so wants gradients."""
    target_rows: int
    """Rows of one micro-batch's target."""
    example: Tensor | None = None
    """First stage: one micro-batch of real input, for its type."""

    def inputs(self, batch: Tensor | None) -> list[Tensor]:
        """The first stage's micro-batches; none elsewhere."""
        return [] if batch is None else split(batch, self.microbatches, self.input_shape[0])

    def targets(self, batch: Tensor | None) -> list[Tensor]:
        """The last stage's micro-batches; none elsewhere."""
        return [] if batch is None else split(batch, self.microbatches, self.target_rows)


@dataclass(frozen=True)
class Trained:
    """What a training step leaves on the last stage, one a micro-batch, detached; else nothing.

    `losses` are what was differentiated, so that what is reported can be held against it.
    """

    outputs: Sequence[Tensor] = ()
    losses: Sequence[Tensor] = ()


class StageGradients(Protocol):
    """One stage's gradients, averaged over replicas."""

    reductions: int
    """All-reduces since the start: one a step, or the measurement is of something else."""

    def norm(self) -> float | None:
        """The length of the whole gradient; none where there is nothing to learn."""
        ...


class Engine(Protocol):
    """Runs steps. Inputs and targets are whole mini-batches, stacked along rows; only the first
    stage looks at inputs and only the last at targets.
    """

    @property
    def gradients(self) -> StageGradients:
        """Of the stage it trains."""
        ...

    def train_step(self, inputs: Tensor | None, targets: Tensor | None) -> Trained:
        """Forward and backward; gradients are complete and averaged over replicas after it."""
        ...

    def evaluate(self, inputs: Tensor | None) -> Sequence[Tensor]:
        """Forward alone, in evaluation mode, without touching anything training uses."""
        ...


class _Arrived(torch.autograd.Function):
    """A scalar behind an output, whose backward hands on the gradient that arrived."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, gradient: Tensor) -> Tensor:
        ctx.gradient = gradient
        return output.new_zeros(())

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, None]:
        return ctx.gradient, None


def backward(result: Tensor, gradient: Tensor | None) -> None:
    """Backward from a loss, or from an output whose gradient came from elsewhere.

    `result.backward(gradient)` is the same, but compares the two shapes by means of sympy, which
    takes half a second to import.
    """
    scalar: Tensor = result
    if gradient is not None:
        scalar = _Arrived.apply(result, gradient)  # type: ignore[no-untyped-call]
    scalar.backward()


def split(batch: Tensor, parts: int, rows: int) -> list[Tensor]:
    """Micro-batches of exactly `rows` rows.

    Raises GnnhpcError for any other batch: gloo would send an uneven one without complaint and
    leave stale rows behind it.
    """
    if batch.shape[0] != parts * rows:
        raise GnnhpcError(
            f"uneven batch: {batch.shape[0]} rows where {parts} micro-batches of {rows} are planned"
        )
    return list(batch.split(rows))


def parameters_of(module: nn.Module) -> list[nn.Parameter]:
    return [p for p in module.parameters() if p.requires_grad]
