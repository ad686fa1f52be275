"""What every engine takes and returns: the stage's plan, a step's output; and the backward.

The loss of a step is the sum over its valid targets, divided by how many there are over all
replicas, so micro-batches and replicas of any size add up to the sequential gradient.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.variable import Variable

from gnnhpc.batches.batch import Inputs, MicroBatch
from gnnhpc.core.schedules import Action, stage_order
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.engines.stage import Stage
from gnnhpc.engines.step_timer import StepTimer
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.models.layers.split_backward import DeferredGradient


@dataclass(frozen=True)
class VirtualStagePlan:
    """Neighbouring layers that one rank computes: its stage, or one of its virtual stages."""

    stage: Stage
    number: int
    """Number among all virtual stages of the model, first to last."""
    place: int
    """Number among the virtual stages of this rank."""
    is_first: bool
    is_last: bool
    input_shape: tuple[int, ...]
    """Shape of a micro-batch that enters it."""
    output_shape: tuple[int, ...]
    """Shape of a micro-batch that leaves it."""
    upstream_trains: bool
    """Whether any virtual stage before has parameters, and so needs gradients."""


Loss = Callable[[Tensor, MicroBatch, int], Tensor]
"""A micro-batch's part of a step's loss, of its output; the number counts the batch's valid targets
over all replicas."""


@dataclass(frozen=True)
class StagePlan:
    """One rank's share of a step: its stage, and the virtual stages that it consists of."""

    experiment: Experiment
    stage: Stage
    mesh: Mesh
    timer: StepTimer
    loss: Loss
    virtual_stages: tuple[VirtualStagePlan, ...]
    """One but under the schedules interleaved and zbv."""
    fixed_rows: bool
    """Whether all micro-batches have as many rows; the shapes have no rows otherwise."""
    cut: Sequence[range]
    """The layers of each virtual stage of the model; one process may hold several."""

    @property
    def dtype(self) -> torch.dtype:
        """Of the activations."""
        found: torch.dtype = getattr(torch, self.experiment.dtype)
        return found

    def order(self, *, training: bool) -> list[Action]:
        """What this rank does in a step, in the schedule's order."""
        return stage_order(
            self.experiment.schedule,
            self.mesh.stage,
            self.mesh.layout.stages,
            self.experiment.microbatches,
            virtual_stages=len(self.virtual_stages),
            training=training,
        )


def first_input(microbatch: MicroBatch) -> Inputs:
    """The inputs of a micro-batch, which the first stage has."""
    assert microbatch.inputs is not None
    return microbatch.inputs


@dataclass(frozen=True)
class StepOutput:
    """What a step returns on the stage of the loss, one a micro-batch, detached; else empty."""

    outputs: Sequence[Tensor] = ()
    losses: Sequence[Tensor] = ()
    """What was differentiated."""


def parameters_of(module: nn.Module) -> list[nn.Parameter]:
    return [p for p in module.parameters() if p.requires_grad]


_engine: Any = Variable._execution_engine


def backward(result: Tensor, gradient: Tensor | None) -> None:
    """Backward from a loss, or from an output whose gradient the next stage has sent.

    `result.backward(gradient)` is the same, but its Python takes a tenth of a millisecond where a
    kernel has driven that out of the caches, and compares the two shapes by means of sympy, which
    takes half a second to import. Megatron-LM's schedules call the engine of autograd so too.
    """
    if gradient is None:
        # A copy, as a hook may change it in place.
        gradient = _one(result.dtype, result.device).clone().view_as(result)
    _engine.run_backward(
        (result,),
        (gradient,),
        keep_graph=False,
        create_graph=False,
        inputs=(),
        allow_unreachable=True,
        accumulate_grad=True,
    )


@functools.cache
def _one(dtype: torch.dtype, device: torch.device) -> Tensor:
    """The gradient of a loss."""
    return torch.ones((), dtype=dtype, device=device)


def compute_deferred(deferred: Sequence[DeferredGradient]) -> None:
    """Compute all gradients that a backward has deferred, and add them to the weights'."""
    for each in deferred:
        with torch.no_grad():
            gradient = each.compute()
        backward(each.weight, gradient)
