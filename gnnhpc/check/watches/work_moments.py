"""When each micro-batch's forward and backward began and had computed all that they do, by hooks.

A forward begins with its first layer and ends with its last layer's output, or with the loss; a
backward begins with the gradient of that output and ends with the last gradient of the first layer
that trains, or with that of its input. Forwards that are computed again are a part of backward.
Gradients of weights that a backward leaves for later are work of their own, `weights`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple, cast

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from gnnhpc.check.watches.recomputed_forwards import Place
from gnnhpc.core.schedule import Action, Kind
from gnnhpc.engines.stage import Stage
from gnnhpc.engines.system_counters import delay_in, read_schedstat
from gnnhpc.models.added_gradients import AddsGradients
from gnnhpc.models.later_weights import LeftGradient
from gnnhpc.models.layers.batchnorm import is_recomputing
from gnnhpc.tasks.task import Loss


class Moment(NamedTuple):
    """Of the engine's thread."""

    at_s: float
    """Seconds since the step's first barrier."""
    delay_s: float | None
    """How long the thread had waited for a processor by then, since it began."""


_Event = tuple[Literal["begins", "ends", "loss begins"], Kind, Place, float, bytes]
"""What was seen, of which work, and what was read then: the clock and the thread's schedstat. A
plain tuple, as a named one takes a call more."""

Moments = dict[tuple[Kind, Place], Moment]


@dataclass
class WorkMoments:
    """Of one step, by a clock that nothing adjusts (CLOCK_MONOTONIC_RAW)."""

    begins: Moments = field(default_factory=dict)
    ends: Moments = field(default_factory=dict)
    loss_begins: dict[Place, Moment] = field(default_factory=dict)
    """When a loss's own backward began, before that of the part that gave its output."""
    order: list[Action] = field(default_factory=list)
    """All that was begun."""
    on_backward: Callable[[], None] | None = None
    """Told when the gradient of a part's output is there, as one hook does for two."""
    _events: list[_Event] = field(default_factory=list)
    """Of the step, as hooks saw them: what they say is worked out after it."""
    _in_step: bool = False
    _going_back: Place | None = None
    """Whose backward began last."""
    _reached_first: Place | None = None
    """Whose backward has come to the part with the first layer that trains."""
    _ends_elsewhere: set[int] = field(default_factory=set)
    """Those for which this is not the part that a backward begins with."""
    _of_weights: Place | None = None
    """Whose gradients of weights are computed."""
    _from_s: float = 0.0
    _of_inputs: list[RemovableHandle] = field(default_factory=list)
    """This step's hooks of what stages are given."""

    def attach(self, stage: Stage, loss: Loss | None) -> None:
        for part, called in enumerate(stage.called):
            called.on_left.append(self._gradient_is_left)
            called.parts[0].register_forward_pre_hook(partial(self._forward_begins, part))
            called.parts[-1].register_forward_hook(partial(self._forward_ends, part))
            first, parameters = first_trained(called)
            if called.parts[first] is not called.parts[-1]:
                self._ends_elsewhere.add(part)
                called.parts[first].register_forward_hook(partial(self._first_forward_ends, part))
            for parameter in parameters:
                parameter.register_post_accumulate_grad_hook(self._gradient_is_there)
        if loss is not None:
            # Of the last part alone.
            loss.on_value.append(partial(self._loss_is_there, len(stage.called) - 1))

    def begin_step(self, from_s: float) -> None:
        """`from_s` is the clock at the step's first barrier."""
        self._events = []
        self._in_step, self._from_s = True, from_s
        self._going_back = self._reached_first = self._of_weights = None

    def end_step(self) -> None:
        """What is computed from here on is no work of the step."""
        self._in_step = False
        for hook in self._of_inputs:
            hook.remove()
        self._of_inputs = []

    def read(self) -> None:
        """Say in `begins`, `ends`, `loss_begins` and `order` what was seen of the step."""
        self.begins, self.ends, self.loss_begins, self.order = {}, {}, {}, []
        for what, kind, place, at_s, schedstat in self._events:
            moment = Moment(at_s - self._from_s, delay_in(schedstat))
            if what == "begins":
                part, microbatch = place
                self.order.append(Action(kind, microbatch, part))
                self.begins[kind, place] = moment
            elif what == "ends":
                self.ends[kind, place] = moment
            else:
                self.loss_begins[place] = moment

    @property
    def of_weights(self) -> bool:
        """Whether gradients of weights are computed now, apart from a backward."""
        return self._of_weights is not None

    def seconds_of(self, kind: Kind) -> float:
        """From their beginnings to their ends."""
        began = {place: at.at_s for (of, place), at in self.begins.items() if of == kind}
        return sum(
            at.at_s - began[place]
            for (of, place), at in self.ends.items()
            if of == kind and place in began
        )

    def _begin(self, kind: Kind, place: Place) -> None:
        if self._in_step:
            # Read outside the work, here and below: a wait between the two readings is left out.
            at_s = time.clock_gettime(time.CLOCK_MONOTONIC_RAW)
            self._events.append(("begins", kind, place, at_s, read_schedstat()))

    def _end(self, kind: Kind, place: Place) -> None:
        if self._in_step:
            schedstat = read_schedstat()
            at_s = time.clock_gettime(time.CLOCK_MONOTONIC_RAW)
            self._events.append(("ends", kind, place, at_s, schedstat))

    def _forward_begins(self, part: int, stage: nn.Module, given: tuple[Any, ...]) -> None:
        if is_recomputing():
            return
        self._of_weights = None
        x, context = given[:2]
        place = part, context.microbatch
        self._begin("forward", place)
        if isinstance(x, Tensor) and x.requires_grad:
            # A receive buffer of torch's schedule is the same tensor in every step.
            ends = cast(Stage, stage).hook_gradient(x, lambda _: self._end("backward", place))
            self._of_inputs.append(ends)

    def _forward_ends(
        self, part: int, _stage: nn.Module, given: tuple[Any, ...], output: Any
    ) -> None:
        place = part, given[1].microbatch
        if not is_recomputing():
            self._end("forward", place)
        # torchgpipe's first forward of what it computes again gives nothing that needs a gradient.
        if isinstance(output, Tensor) and output.requires_grad:
            output.register_hook(lambda _gradient: self._backward_begins(place))

    def _first_forward_ends(
        self, part: int, _stage: nn.Module, given: tuple[Any, ...], output: Any
    ) -> None:
        """An engine may go back through one micro-batch's last parts before another's first."""
        place = part, given[1].microbatch
        if isinstance(output, Tensor) and output.requires_grad:
            output.register_hook(lambda _gradient: self._reaches_first(place))

    def _reaches_first(self, place: Place) -> None:
        self._reached_first = place

    def _loss_is_there(self, part: int, microbatch: int, value: Tensor) -> None:
        place = part, microbatch
        self._end("forward", place)
        if value.requires_grad:
            value.register_hook(lambda _gradient: self._loss_goes_back(place))

    def _loss_goes_back(self, place: Place) -> None:
        if self._in_step:
            at_s = time.clock_gettime(time.CLOCK_MONOTONIC_RAW)
            self._events.append(("loss begins", "backward", place, at_s, read_schedstat()))

    def _backward_begins(self, place: Place) -> None:
        if self.on_backward is not None:
            self.on_backward()
        self._going_back, self._of_weights = place, None
        if place[0] not in self._ends_elsewhere:
            self._reached_first = place
        self._begin("backward", place)

    def _gradient_is_there(self, _parameter: Tensor) -> None:
        if self._of_weights is not None:
            self._end("weights", self._of_weights)
        elif self._reached_first is not None:
            self._end("backward", self._reached_first)

    def _gradient_is_left(self, left: LeftGradient) -> None:
        if self._going_back is not None:
            left.compute = partial(self._compute_left, self._going_back, left.compute)

    def _compute_left(self, place: Place, compute: Callable[[], Tensor]) -> Tensor:
        if self._of_weights != place:
            self._begin("weights", place)
        self._of_weights = place
        gradient = compute()
        self._end("weights", place)
        return gradient


def first_trained(stage: Stage) -> tuple[int, list[nn.Parameter]]:
    """Of its first layer that has some, those that train, and which part has the layer; one of them
    where they have their gradients all at once, as each that is told takes some microseconds."""
    for index, part in enumerate(stage.parts):
        for layer in part.layers:
            if found := [p for p in layer.parameters() if p.requires_grad]:
                at_once = isinstance(layer, AddsGradients) and layer.adds_gradients
                return index, found[:1] if at_once else found
    return 0, []
