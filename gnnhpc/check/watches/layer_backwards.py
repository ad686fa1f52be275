"""How long each layer's backward took by a second clock, in steps that are looked at closely.

A layer's backward is timed from the mark of its own beginning to the next mark, of the layer
before it or of the micro-batch's end; a forward that is computed again, and gradients of weights
that are computed later, count too. Hooks read another clock before each mark and after it, so its
seconds lie between two bounds however busy the machine is. Layers that one call computes are held
together by it, and each by what the call itself has read.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from gnnhpc.check.watches.layer_times import LayerSeconds, called_together
from gnnhpc.check.watches.work_moments import first_trained
from gnnhpc.core.schedule import Kind
from gnnhpc.engines.given import Given
from gnnhpc.engines.stage import Stage
from gnnhpc.models import one_call
from gnnhpc.models.later_weights import LeftGradient
from gnnhpc.models.layers.batchnorm import is_recomputing
from gnnhpc.models.one_call import needs_no_input

Names = tuple[str, ...]
"""Of layers that one call may compute."""
_Work = tuple[Kind, int, int]
"""Of which part and micro-batch."""


class Event(NamedTuple):
    """What a hook saw."""

    what: Literal["reaches", "told", "again", "left", "added", "other"]
    """A gradient reaches a layer's output, before its mark; the engine has told of it, after its
    mark; a layer is computed again, or a gradient that it left, after its mark; a parameter has its
    gradient; or what shows nothing but that time went by."""
    names: Names
    at_s: float
    work: _Work | None
    """None for what belongs to the work before."""


class Mark(NamedTuple):
    """Where the engine's lies; without names it ends a micro-batch's backward."""

    names: Names | None
    least_s: float
    most_s: float


class Called(NamedTuple):
    """One call's own readings of its layers' backward, in their order."""

    names: Names
    began_s: float | None
    """None of a forward that was computed again."""
    ended_s: Sequence[float]


@dataclass
class LayerBackwards:
    """Hooks a stage's layers between `attach` and `detach`, for one step.

    Says nothing of torchgpipe's parts, whose micro-batches go backward without an end between them.
    """

    stage: Stage
    singly: bool = False
    """Whether its engine calls each layer by itself, so that a hook may come between any two."""
    _events: list[Event] = field(default_factory=list)
    _calls: list[Called] = field(default_factory=list)
    _groups: list[Names] = field(default_factory=list)
    """Which layers are called together."""
    _names: dict[nn.Module, str] = field(default_factory=dict)
    _given: Given | None = None
    """Of the layer that is called now, or of the first of several that one call computes."""
    _undo: list[Callable[[], None]] = field(default_factory=list)

    def attach(self) -> None:
        self.detach()
        self._events, self._calls, self._groups, self._names = [], [], [], {}
        if any(called.parts != (called,) for called in self.stage.called):
            return
        for number, part in enumerate(self.stage.called):
            self._attach_to(number, part)
        self._listen(one_call.on_backward, self._call_ended)

    def _attach_to(self, number: int, part: Stage) -> None:
        names = [outline.name for outline in part.outlines]
        self._names |= dict(zip(part.layers, names, strict=True))
        self._hook(part.register_forward_pre_hook(partial(self._forward_begins, number)))
        single: dict[str, Names] = {}
        alone = [range(n, n + 1) for n in range(len(names))]
        for numbers in alone if self.singly else called_together(part.layers):
            group = tuple(names[n] for n in numbers)
            self._groups.append(group)
            if len(group) == 1:
                single[group[0]] = group
            first, last = part.layers[numbers[0]], part.layers[numbers[-1]]
            self._hook(first.register_forward_pre_hook(partial(self._layer_begins, number, group)))
            ends = needs_no_input(partial(self._layer_ends, number, part, group))
            self._hook(last.register_forward_hook(ends))
        for parameter in first_trained(part)[1]:
            self._hook(parameter.register_post_accumulate_grad_hook(self._is_added))
        self._listen(part.on_backward, partial(self._is_told, single))
        self._listen(part.on_left, self._is_left)

    def _hook(self, handle: Any) -> None:
        self._undo.append(handle.remove)

    def _listen(self, listeners: list[Any], listener: Any) -> None:
        listeners.append(listener)
        self._undo.append(partial(listeners.remove, listener))

    def detach(self) -> None:
        if self._undo:
            self._note("other", (), ("forward", -1, -1))
        for undo in self._undo:
            undo()
        self._undo = []

    def seen(self) -> list[LayerSeconds]:
        """Of the step; nothing where hooks were called otherwise than marks are made."""
        marks = marks_of(self._events)
        if marks is None:
            return []
        added = (each.at_s for each in reversed(self._events) if each.what == "added")
        bounds = between(marks, next(added, math.inf))
        found = [LayerSeconds(names, *bounds.get(names, (0.0, 0.0))) for names in self._groups]
        return [*found, *self._within_calls()]

    def _within_calls(self) -> Iterator[LayerSeconds]:
        """Of each layer of a call, what that has read; the first one's goes on after it."""
        for names in self._groups:
            mine = [call for call in self._calls if set(call.names) <= set(names)]
            works = [e.what for e in self._events if e.names == names]
            again = "again" in works
            whole = len(mine) == len(works) and all(call.names == names for call in mine)
            for name in names if mine else ():
                least_s = sum(_in_call(call, name) for call in mine)
                # What comes before a forward's first layer, and after its last, is theirs.
                certain = whole and name != names[0] and not (again and name == names[-1])
                yield LayerSeconds((name,), least_s, least_s if certain else math.inf)

    def _note(
        self,
        what: Literal["reaches", "told", "again", "left", "added", "other"],
        names: Names = (),
        work: _Work | None = None,
    ) -> None:
        at_s = time.clock_gettime(time.CLOCK_MONOTONIC_RAW)
        self._events.append(Event(what, names, at_s, work))

    def _forward_begins(self, part: int, _stage: nn.Module, given: tuple[Any, ...]) -> None:
        x, context = given[:2]
        if is_recomputing():
            return
        self._note("other", (), ("forward", part, context.microbatch))
        if isinstance(x, Tensor) and x.requires_grad:
            self._hook(x.register_hook(lambda _gradient: self._note("other")))

    def _layer_begins(
        self, part: int, names: Names, _layer: nn.Module, given: tuple[Any, ...]
    ) -> None:
        if is_recomputing():
            self._note("again", names, ("backward", part, given[1].microbatch))
        self._given = Given.of(given[0])

    def _layer_ends(
        self,
        part: int,
        called: Stage,
        names: Names,
        _layer: nn.Module,
        given: tuple[Any, ...],
        output: Any,
    ) -> None:
        if is_recomputing():
            self._note("other")
        if not isinstance(output, Tensor) or not output.requires_grad:
            return
        # A parameter that is the output needs one also where none is computed.
        if not torch.is_grad_enabled():
            return
        if self._given is None or not self._given.is_handed_on(output):
            work: _Work = "backward", part, given[1].microbatch
            # It may be a parameter.
            told = called.hook_gradient(output, lambda _: self._note("reaches", names, work))
            self._hook(told)

    def _is_told(self, single: dict[str, Names], layer: str) -> None:
        # Of layers that one call computes it is told before their mark.
        if layer in single:
            self._note("told", single[layer])

    def _is_added(self, _parameter: Tensor) -> None:
        self._note("added")

    def _is_left(self, left: LeftGradient) -> None:
        """By the layer that goes backward now."""
        if left.layer is None:
            return
        event = next((e for e in reversed(self._events) if e.names and e.work is not None), None)
        if event is not None and event.work is not None:
            _, part, microbatch = event.work
            work: _Work = "weights", part, microbatch
            left.compute = partial(self._compute_left, event.names, work, left.compute)

    def _compute_left(self, names: Names, work: _Work, compute: Callable[[], Tensor]) -> Tensor:
        self._note("left", names, work)
        gradient = compute()
        self._note("other")
        return gradient

    def _call_ended(
        self, layers: Sequence[nn.Module], began_s: float | None, ended_s: Sequence[float]
    ) -> None:
        if all(layer in self._names for layer in layers):
            names = tuple(self._names[layer] for layer in layers)
            self._calls.append(Called(names, began_s, ended_s))


def _in_call(call: Called, name: str) -> float:
    """Seconds of a layer's backward, which begins where that of the next one has ended; or of its
    forward, but for the first one's, of which nobody read when it began."""
    if name not in call.names:
        return 0.0
    at = call.names.index(name)
    if call.began_s is None:
        return call.ended_s[at] - call.ended_s[at - 1] if at else 0.0
    return call.ended_s[at] - [*call.ended_s[1:], call.began_s][at]


def marks_of(events: Sequence[Event]) -> list[Mark] | None:
    """The engine's marks; None where a layer's output had a gradient and the engine did not tell.

    Each lies between the event before it and the one after it.
    """
    marks: list[Mark] = []
    work: _Work | None = None
    since_s = now_s = events[0].at_s if events else 0.0
    for _, event, after in _with_neighbours(_gradients_first(events)):
        if event.at_s > now_s:
            since_s, now_s = now_s, event.at_s
        if event.work is not None and event.work != work:
            work = event.work
            if marks and marks[-1].names is not None:
                marks.append(Mark(None, since_s, now_s))
        if event.what == "reaches" and len(event.names) == 1:
            if after is None or not _is_told(after, event.names):
                return None
        elif event.what == "reaches":
            marks.append(Mark(event.names, now_s, after.at_s if after else math.inf))
        elif event.what in ("told", "again", "left"):
            marks.append(Mark(event.names, since_s, now_s))
    return marks


def _gradients_first(events: Sequence[Event]) -> list[Event]:
    """With the gradient of a layer's output before what the engine tells of it, also where a user's
    hook of the whole layer hands that on as another tensor, which the engine has marked."""
    found: list[Event] = []
    for before, event, after in _with_neighbours(events):
        if after is not None and after.what == "reaches" and _is_told(event, after.names):
            found.append(after._replace(at_s=event.at_s))
        if event.what != "reaches" or before is None or not _is_told(before, event.names):
            found.append(event)
    return found


def _is_told(event: Event, names: Names) -> bool:
    return (event.what, event.names) == ("told", names)


def _with_neighbours(events: Sequence[Event]) -> Iterator[tuple[Event | None, Event, Event | None]]:
    yield from zip([None, *events], events, [*events[1:], None], strict=False)


def between(marks: Sequence[Mark], ready_s: float) -> dict[Names, tuple[float, float]]:
    """The least and the most that layers' backwards took; what comes after `ready_s`, when all
    gradients were there, may be told as their all-reduce."""
    found: dict[Names, tuple[float, float]] = {}
    for mark, following in itertools.pairwise(marks):
        if mark.names is not None:
            least_s, most_s = found.get(mark.names, (0.0, 0.0))
            certain_s = max(0.0, min(following.least_s, ready_s) - mark.most_s)
            found[mark.names] = least_s + certain_s, most_s + following.most_s - mark.least_s
    return found
