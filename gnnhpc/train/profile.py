"""Measures the seconds of each layer on this machine, to balance the layers over stages.

gnnhpc.core.balance does the balancing, from these seconds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gnnhpc.batches.batch import Inputs, MicroBatch
from gnnhpc.core.outline import LayerOutline
from gnnhpc.engines.base import backward, first_input
from gnnhpc.engines.clock import Clock
from gnnhpc.engines.stage import Stage, build_stage
from gnnhpc.engines.timing import StepTimer
from gnnhpc.spec.experiment import Experiment
from gnnhpc.tasks.task import Loss

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
    outlines: Sequence[LayerOutline],
    example: MicroBatch,
    loss: Loss,
) -> list[LayerCost]:
    """Time every layer alone on one micro-batch, as the chain would feed it.

    The modules are built for this only; the run's random state and statistics do not change.
    """
    passes: list[list[LayerCost]] = [[] for _ in outlines]
    with torch.random.fork_rng(devices=[]):
        layers = [_alone(experiment, outlines, index) for index in range(len(outlines))]
        for number in range(REPEATS + 1):
            x = first_input(example)
            for index, layer in enumerate(layers):
                if index and isinstance(x, Tensor):
                    x = x.detach().requires_grad_()
                last = index == len(layers) - 1
                x, cost = _time(layer, x, example, loss if last else None)
                if number:
                    passes[index].append(cost)
    return [_median(costs) for costs in passes]


def _alone(experiment: Experiment, outlines: Sequence[LayerOutline], index: int) -> Stage:
    timer = StepTimer(Clock(torch.device("cpu")))
    stage = build_stage(experiment, outlines, range(index, index + 1), timer)
    stage.timer = None
    return stage


def _time(
    layer: Stage, x: Inputs, example: MicroBatch, loss: Loss | None
) -> tuple[Tensor, LayerCost]:
    start = time.perf_counter()
    output = layer(x, example.context)
    result = output if loss is None else loss(output, example, len(output))
    forward_s = time.perf_counter() - start
    gradient = torch.ones_like(result)
    start = time.perf_counter()
    if result.requires_grad:
        backward(result, gradient)
    backward_s = time.perf_counter() - start
    start = time.perf_counter()
    output.detach().clone()
    transfer_s = time.perf_counter() - start
    return output, LayerCost(layer.outlines[0].name, forward_s, backward_s, transfer_s)


def _median(costs: Sequence[LayerCost]) -> LayerCost:
    return LayerCost(
        costs[0].name,
        statistics.median(cost.forward_s for cost in costs),
        statistics.median(cost.backward_s for cost in costs),
        statistics.median(cost.transfer_s for cost in costs),
    )
