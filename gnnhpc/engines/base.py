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

from gnnhpc.batches.batch import Batch, Inputs, MicroBatch
from gnnhpc.core.errors import GnnhpcError
from gnnhpc.core.schedule import ScheduleName
from gnnhpc.engines.stage import Stage
from gnnhpc.engines.timing import StepTimer
from gnnhpc.ranks.mesh import Mesh
from gnnhpc.tasks.task import Loss


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

    def check(self, batch: Batch) -> None:
        """Raises GnnhpcError for a batch of other micro-batches or rows than planned.

        gloo would send an uneven one without complaint and leave stale rows behind it.
        """
        rows_in, rows_out = self.input_shape[0], self.output_shape[0]
        found = [len(batch.microbatches)]
        for microbatch in batch.microbatches:
            if microbatch.inputs is not None and len(microbatch.inputs) != rows_in:
                found.append(len(microbatch.inputs))
            found += [len(t) for t in microbatch.targets.values() if len(t) != rows_out]
        if found != [self.microbatches]:
            raise GnnhpcError(
                f"uneven batch: {found[0]} micro-batches, some of {sorted(set(found[1:]))} rows, "
                f"where {self.microbatches} of {rows_in} rows in and {rows_out} out are planned"
            )


def first_input(microbatch: MicroBatch) -> Inputs:
    """What the first stage is given."""
    assert microbatch.inputs is not None
    return microbatch.inputs


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
    """Runs steps. Only the first stage looks at inputs, and only the last at targets."""

    @property
    def gradients(self) -> StageGradients:
        """Of the stage it trains."""
        ...

    def train_step(self, batch: Batch) -> Trained:
        """Forward and backward; gradients are complete and averaged over replicas after it."""
        ...

    def evaluate(self, batch: Batch) -> Sequence[Tensor]:
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


def parameters_of(module: nn.Module) -> list[nn.Parameter]:
    return [p for p in module.parameters() if p.requires_grad]
