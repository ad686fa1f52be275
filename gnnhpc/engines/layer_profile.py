"""Seconds of each layer: in profiled steps, by hooks, and alone, to balance layers over stages."""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from gnnhpc.batches.batch import MicroBatch
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
            self._handles += [
                layer.register_forward_pre_hook(partial(self._forward_begins, spec.name)),
                layer.register_forward_hook(partial(self._forward_ends, spec.name)),
            ]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _forward_begins(self, name: str, module: nn.Module, args: Any) -> None:
        self._began[name] = self._timer.now()

    def _forward_ends(self, name: str, module: nn.Module, args: Any, output: Any) -> None:
        if is_recomputing():
            return
        self._forwards.append((name, self._began[name], self._timer.now()))
        returns_input = output is args[0]
        if isinstance(output, Tensor) and output.requires_grad and not returns_input:
            output.register_hook(lambda gradient: self._backwards.append((name, self._timer.now())))

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


def measure_layers(
    experiment: Experiment,
    specs: Sequence[LayerSpec],
    example: MicroBatch,
    loss: Loss,
    device: torch.device,
) -> list[tuple[float, float]]:
    """Seconds of each layer alone on one micro-batch, fed as in the model: forward and backward
    together, and a copy of its output.

    The modules are built for this only; the run's random state and statistics do not change.
    """
    timer = StepTimer(device)
    with torch.random.fork_rng(devices=[]):
        layers = [
            build_stage(experiment, specs, [range(n, n + 1)], timer).to(device)
            for n in range(len(specs))
        ]
        passes = [_time_layers(layers, example, loss, timer) for _ in range(REPEATS + 1)]
    of_layers = zip(*passes[1:], strict=True)
    return [
        (statistics.median(work), statistics.median(copies))
        for work, copies in (zip(*each, strict=True) for each in of_layers)
    ]


def _time_layers(
    layers: Sequence[Stage], example: MicroBatch, loss: Loss, timer: StepTimer
) -> list[tuple[float, float]]:
    """One pass. A GPU's events have times once it is done, so they are read last."""
    timer.start(profiled=True)
    timestamps: list[tuple[Timestamp, ...]] = []
    x = first_input(example)
    for index, layer in enumerate(layers):
        if index and isinstance(x, Tensor):
            x = x.detach().requires_grad_()
        start = timer.now()
        output = result = layer(x, example.context)
        if layer is layers[-1]:
            result = loss(output, example, len(output))
        computed = timer.now()
        gradient = torch.ones_like(result)
        ready = timer.now()
        if result.requires_grad:
            backward(result, gradient)
        returned = timer.now()
        output.detach().clone()
        timestamps.append((start, computed, ready, returned, timer.now()))
        x = output
    timer.synchronize()
    costs = []
    for taken in timestamps:
        start_s, computed_s, ready_s, returned_s, copied_s = map(timer.seconds, taken)
        costs.append((computed_s - start_s + returned_s - ready_s, copied_s - returned_s))
    return costs
