"""Seconds of each layer: in profiled steps, by hooks, and alone, to balance layers over stages."""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from gnnhpc.batches.batch import Inputs, MicroBatch
from gnnhpc.core.layer_specs import LayerSpec
from gnnhpc.engines.engine import Loss, backward, first_input
from gnnhpc.engines.stage import Stage, build_stage
from gnnhpc.engines.step_timer import Span, StepTimer, Timestamp
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.models.layers.batchnorm import is_recomputing


class LayerProfile:
    """Measures layers between `__enter__` and `__exit__`, around one step of the stage.

    A layer's forward lies between its hooks. Its backward begins when the gradient of its output
    arrives, and ends when that of an earlier layer's output does, or with the span. Under split
    backward it is without the gradients of weights. A layer that returns its input has no backward.
    """

    def __init__(
        self, specs: Sequence[LayerSpec], layers: Sequence[nn.Module], timer: StepTimer
    ) -> None:
        self._specs, self._layers, self._timer = specs, layers, timer
        self._handles: list[RemovableHandle] = []
        self._forwards: list[tuple[str, Timestamp, Timestamp]] = []
        self._backwards: list[tuple[str, Timestamp]] = []
        self._began: dict[str, Timestamp] = {}

    def __enter__(self) -> Self:
        for spec, layer in zip(self._specs, self._layers, strict=True):
            self._handles.append(layer.register_forward_pre_hook(self._before(spec.name)))
            self._handles.append(layer.register_forward_hook(self._after(spec.name)))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for handle in self._handles:
            handle.remove()

    def _before(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any) -> None:
            self._began[name] = self._timer.now()

        return hook

    def _after(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            if is_recomputing():
                return
            self._forwards.append((name, self._began[name], self._timer.now()))
            returns_input = output is args[0]
            if isinstance(output, Tensor) and output.requires_grad and not returns_input:
                output.register_hook(arrives)

        def arrives(gradient: Tensor) -> None:
            self._backwards.append((name, self._timer.now()))

        return hook

    def groups(self, spans: Sequence[Span]) -> dict[str, list[float]]:
        """Forward and backward seconds of each group of layers in the step of these spans."""
        seconds = self._timer.seconds
        layers: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for name, start, end in self._forwards:
            layers[name][0] += seconds(end) - seconds(start)
        arrived = [(name, seconds(at)) for name, at in self._backwards]
        for span in spans:
            if span.name == "backward":
                mine = [each for each in arrived if span.start_s <= each[1] <= span.end_s]
                for (name, at), (_, until) in itertools.pairwise([*mine, ("", span.end_s)]):
                    layers[name][1] += until - at
        groups: dict[str, list[float]] = {}
        for spec in self._specs:
            total = groups.setdefault(spec.group, [0.0, 0.0])
            for place, each in enumerate(layers[spec.name]):
                total[place] += each
        return {name: [round(each, 9) for each in both] for name, both in groups.items()}


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


def measure_layers(
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
    """One pass of all layers. A GPU's events have times once it is done, so they are read last."""
    timestamps = []
    x = first_input(example)
    for index, layer in enumerate(layers):
        if index and isinstance(x, Tensor):
            x = x.detach().requires_grad_()
        last = index == len(layers) - 1
        x, taken = _time_layer(layer, x, example, loss if last else None, timer)
        timestamps.append(taken)
    timer.synchronize()
    costs = []
    for layer, taken in zip(layers, timestamps, strict=True):
        start, computed, ready, returned, copied = map(timer.seconds, taken)
        name = layer.specs[0].name
        costs.append(LayerCost(name, computed - start, returned - ready, copied - returned))
    return costs


def _time_layer(
    layer: Stage, x: Inputs, example: MicroBatch, loss: Loss | None, timer: StepTimer
) -> tuple[Tensor, tuple[Timestamp, ...]]:
    """A layer's output; timestamps around its forward, and before and after its backward and a
    copy."""
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
