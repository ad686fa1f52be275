"""Seconds of each layer of a stage, by hooks that exist in profiled steps alone."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from gnnhpc.core.layer_specs import LayerSpec
from gnnhpc.engines.step_timer import Span, StepTimer, Timestamp
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
