"""Measures the seconds of each layer on this machine, to balance the layers over stages.

`gnnhpc.core.balance` chooses the cut from these seconds.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gnnhpc.batches.batch import Inputs, MicroBatch
from gnnhpc.core.layer_specs import LayerSpec
from gnnhpc.engines.backward import backward
from gnnhpc.engines.engine import Loss, first_input
from gnnhpc.engines.stage import Stage, build_stage
from gnnhpc.engines.step_timer import StepTimer, Timestamp
from gnnhpc.experiment.experiment import Experiment

REPEATS = 3
"""Measured passes, after one to warm up; the median counts."""


@dataclass(frozen=True)
class LayerCost:
    """Seconds of one micro-batch: forward, backward, and a copy of the output."""

    name: str
    forward_s: float
    backward_s: float
    transfer_s: float

    @property
    def total_s(self) -> float:
        return self.forward_s + self.backward_s


def profile(
    experiment: Experiment,
    specs: Sequence[LayerSpec],
    example: MicroBatch,
    loss: Loss,
    device: torch.device,
) -> list[LayerCost]:
    """Time every layer alone on one micro-batch on `device`, as the chain would feed it.

    The modules are built for this only; the run's random state and statistics do not change.
    """
    passes: list[list[LayerCost]] = []
    timer = StepTimer(device)
    with torch.random.fork_rng(devices=[]):
        layers = [_alone(experiment, specs, index, timer) for index in range(len(specs))]
        for _ in range(REPEATS + 1):
            timer.start(profiled=True)
            passes.append(_time_chain(layers, example, loss, timer))
    return [_median(costs) for costs in zip(*passes[1:], strict=True)]


def _alone(
    experiment: Experiment, specs: Sequence[LayerSpec], index: int, timer: StepTimer
) -> Stage:
    stage = build_stage(experiment, specs, [range(index, index + 1)], timer)
    return stage.to(timer.device)


def _time_chain(
    layers: Sequence[Stage], example: MicroBatch, loss: Loss, timer: StepTimer
) -> list[LayerCost]:
    """One pass of all layers. A GPU's marks have times once it is done, so they are read last."""
    marks = []
    x = first_input(example)
    for index, layer in enumerate(layers):
        if index and isinstance(x, Tensor):
            x = x.detach().requires_grad_()
        last = index == len(layers) - 1
        x, marked = _mark(layer, x, example, loss if last else None, timer)
        marks.append(marked)
    timer.synchronize()
    costs = []
    for layer, marked in zip(layers, marks, strict=True):
        start, computed, ready, returned, copied = map(timer.seconds, marked)
        name = layer.specs[0].name
        costs.append(LayerCost(name, computed - start, returned - ready, copied - returned))
    return costs


def _mark(
    layer: Stage, x: Inputs, example: MicroBatch, loss: Loss | None, timer: StepTimer
) -> tuple[Tensor, tuple[Timestamp, ...]]:
    """A layer's output; marks around its forward, before and after its backward and a copy."""
    start = timer.now()
    output = layer(x, example.context)
    result = output if loss is None else loss(output, example, len(output))
    computed = timer.now()
    gradient = torch.ones_like(result)
    ready = timer.now()
    if result.requires_grad:
        backward(result, gradient)
    returned = timer.now()
    output.detach().clone()
    return output, (start, computed, ready, returned, timer.now())


def _median(costs: Sequence[LayerCost]) -> LayerCost:
    return LayerCost(
        costs[0].name,
        statistics.median(cost.forward_s for cost in costs),
        statistics.median(cost.backward_s for cost in costs),
        statistics.median(cost.transfer_s for cost in costs),
    )
