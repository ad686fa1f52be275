"""When each micro-batch's forward and backward had computed all that they do, by a second clock.

A forward ends with its last layer's output, or with the loss; a backward with the last gradient of
the first layer that trains, or with that of its input.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor, nn

from gnnhpc.check.watches.recomputed_forwards import Place
from gnnhpc.core.schedule import Kind
from gnnhpc.engines.stage import Stage
from gnnhpc.engines.system_counters import run_delay_s
from gnnhpc.models.recomputation import is_recomputing
from gnnhpc.tasks.task import Loss


class Moment(NamedTuple):
    """Of the engine's thread."""

    at_s: float
    """Seconds since the step's first barrier."""
    delay_s: float | None
    """How long the thread had waited for a processor by then, since it began."""


@dataclass
class WorkEnds:
    """Hooks of a stage's parts and of its loss note the last that each action computed."""

    _ends: dict[tuple[Kind, Place], Moment] = field(default_factory=dict)
    _going_back: Place | None = None
    _from_s: float = 0.0

    def attach(self, stage: Stage, loss: Loss | None) -> None:
        for place, called in enumerate(stage.called):
            called.parts[0].register_forward_pre_hook(partial(self._forward_begins, place))
            called.parts[-1].register_forward_hook(partial(self._forward_ends, place))
            for parameter in _first_trained(called):
                parameter.register_post_accumulate_grad_hook(self._gradient_is_there)
        if loss is not None:
            # Of the last part alone.
            loss.on_value.append(partial(self._loss_is_there, len(stage.called) - 1))

    def begin_step(self, from_s: float) -> None:
        """`from_s` is the clock at the step's first barrier."""
        self._ends, self._going_back, self._from_s = {}, None, from_s

    def of_step(self) -> dict[tuple[Kind, Place], Moment]:
        return self._ends

    def _note(self, kind: Kind, place: Place) -> None:
        # The delay first: what the thread waits after it is taken off, never more than it waited.
        delay_s = run_delay_s()
        at_s = time.clock_gettime(time.CLOCK_MONOTONIC_RAW) - self._from_s
        self._ends[kind, place] = Moment(at_s, delay_s)

    def _forward_begins(self, part: int, _stage: nn.Module, given: tuple[Any, ...]) -> None:
        x, context = given[:2]
        if isinstance(x, Tensor) and x.requires_grad and not is_recomputing():
            place = part, context.microbatch
            x.register_hook(lambda _gradient: self._note("backward", place))

    def _forward_ends(
        self, part: int, _stage: nn.Module, given: tuple[Any, ...], output: Any
    ) -> None:
        if is_recomputing():
            return
        place = part, given[1].microbatch
        self._note("forward", place)
        if isinstance(output, Tensor) and output.requires_grad:
            output.register_hook(lambda _gradient: self._backward_begins(place))

    def _loss_is_there(self, part: int, microbatch: int) -> None:
        self._note("forward", (part, microbatch))

    def _backward_begins(self, place: Place) -> None:
        self._going_back = place

    def _gradient_is_there(self, _parameter: Tensor) -> None:
        if self._going_back is not None:
            self._note("backward", self._going_back)


def _first_trained(stage: Stage) -> list[nn.Parameter]:
    """Of its first layer that has some, those that train."""
    for layer in stage.layers:
        if found := [p for p in layer.parameters() if p.requires_grad]:
            return found
    return []
