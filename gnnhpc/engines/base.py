"""What every engine is given and returns: the stage plan, a step's output, the protocol.

The loss of a step is the sum over its labelled samples, divided by how many there are over all
replicas, so micro-batches and replicas of any size add up to the sequential gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from gnnhpc.batches.batch import Batch, Inputs, MicroBatch
from gnnhpc.core.errors import GnnhpcError
from gnnhpc.core.schedule import Action, Recomputation, ScheduleName, stage_order
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.engines.stage import Stage
from gnnhpc.engines.timing import StepTimer
from gnnhpc.tasks.task import Loss


@dataclass(frozen=True)
class PartPlan:
    """A part of the model that one rank computes: its stage, or one of several parts of it."""

    stage: Stage
    number: int
    """Among all parts of the model, first to last."""
    place: int
    """Among the parts of its stage."""
    is_first: bool
    is_last: bool
    input_shape: tuple[int, ...]
    """Of one micro-batch that enters it."""
    output_shape: tuple[int, ...]
    """Of one micro-batch that leaves it."""
    upstream_trains: bool
    """Whether any part before has parameters, and so needs gradients."""


@dataclass(frozen=True)
class StagePlan:
    """One rank's share of a step: its stage and the parts of it, its schedule."""

    stage: Stage
    mesh: Mesh
    timer: StepTimer
    loss: Loss
    microbatches: int
    schedule: ScheduleName
    parts: tuple[PartPlan, ...]
    """Of this stage, one but under the schedules interleaved and zbv."""
    dtype: torch.dtype
    fixed_rows: bool = True
    """Whether all micro-batches have as many rows; the shapes say nothing of rows where not."""
    cut: Sequence[range] = ()
    """The layers of each part of the model, of which one process may hold several."""
    checkpoint: Recomputation = "never"
    bucket_mib: float | None = None
    """Of gradients that replicas reduce while earlier layers go backward; none: all at the end."""

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Of one micro-batch that enters the first part of this stage."""
        return self.parts[0].input_shape

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Of one micro-batch that leaves the last part of this stage."""
        return self.parts[-1].output_shape

    def order(self, *, training: bool) -> list[Action]:
        """What this rank does in a step, as the schedule has it."""
        stages, parts = self.mesh.layout.stages, len(self.parts)
        return stage_order(
            *(self.schedule, self.mesh.stage, stages, self.microbatches),
            parts=parts,
            training=training,
        )

    def check(self, batch: Batch) -> None:
        """Raises GnnhpcError for a batch of other micro-batches or rows than planned.

        gloo would send an uneven one without an error, and keep old rows in the rest of the buffer.
        """
        rows_in, rows_out = self.input_shape[0], self.output_shape[0]
        found = [len(batch.microbatches)]
        for microbatch in batch.microbatches if self.fixed_rows else ():
            if microbatch.inputs is not None and len(microbatch.inputs) != rows_in:
                found.append(len(microbatch.inputs))
            found += [len(t) for t in microbatch.targets.values() if len(t) != rows_out]
        if found != [self.microbatches]:
            raise GnnhpcError(
                f"uneven batch: {found[0]} micro-batches, some of {sorted(set(found[1:]))} rows, "
                f"where {self.microbatches} of {rows_in} rows in and {rows_out} out are planned"
            )


def first_input(microbatch: MicroBatch) -> Inputs:
    """The inputs of a micro-batch, which the first stage has."""
    assert microbatch.inputs is not None
    return microbatch.inputs


@dataclass(frozen=True)
class StepOutput:
    """What a step returns where the loss is, one a micro-batch, detached; empty on other stages.

    `losses` are what was differentiated, so that the reported loss can be compared with them.
    """

    outputs: Sequence[Tensor] = ()
    losses: Sequence[Tensor] = ()


class StageGradients(Protocol):
    """One stage's gradients, averaged over replicas."""

    reductions: int
    """All-reduces since the start; the audit expects one a step."""

    def norm(self) -> float | None:
        """The norm of the whole gradient; None for a stage without parameters."""
        ...


class Engine(Protocol):
    """Runs steps. Only the first stage uses inputs, and only the last uses targets."""

    @property
    def gradients(self) -> StageGradients:
        """The gradients of the stage that it trains."""
        ...

    def train_step(self, batch: Batch) -> StepOutput:
        """Forward and backward; gradients are complete and averaged over replicas after it."""
        ...

    def evaluate(self, batch: Batch) -> Sequence[Tensor]:
        """Forward only, in evaluation mode, without changing anything that training uses."""
        ...


def parameters_of(module: nn.Module) -> list[nn.Parameter]:
    return [p for p in module.parameters() if p.requires_grad]
