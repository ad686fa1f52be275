"""How long each layer's forward took by a second clock, in steps that are looked at closely.

A layer is timed from the mark of the one before it, or of its stage, to its own. Hooks read another
clock within these marks and around them, so its seconds lie between two bounds however busy the
machine is. Layers that one call computes are held together, as no hook may come between them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple

from torch import nn

from gnnhpc.engines.stage import Stage
from gnnhpc.models.layers.batchnorm import is_recomputing
from gnnhpc.models.one_call import needs_no_input, neighbours


class LayerSeconds(NamedTuple):
    """Of one layer, or of several that are called together, over a step's micro-batches."""

    names: tuple[str, ...]
    least_s: float
    """Within the layers alone."""
    most_s: float
    """From the end of what came before them to the beginning of what came after."""


_Event = tuple[Literal["begins", "ends"], int | None, float]
"""Of layers called together, by number, or of the whole part."""


@dataclass
class LayerTimes:
    """Hooks a stage's layers between `attach` and `detach`, for one step."""

    stage: Stage
    _parts: list[tuple[list[tuple[str, ...]], list[_Event]]] = field(default_factory=list)
    """Of each part, which layers are called together, and what was seen of them."""
    _handles: list[Any] = field(default_factory=list)

    def attach(self) -> None:
        self.detach()
        self._parts = []
        for part in (part for called in self.stage.called for part in called.parts):
            together, events = called_together(part.layers), list[_Event]()
            names = [tuple(part.outlines[n].name for n in numbers) for numbers in together]
            self._parts.append((names, events))
            self._hook(part, part, None, events)
            for number, numbers in enumerate(together):
                first, last = part.layers[numbers[0]], part.layers[numbers[-1]]
                self._hook(first, last, number, events)

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def seen(self) -> list[LayerSeconds]:
        """Of the step."""
        return [each for names, events in self._parts for each in _between(names, events)]

    def _hook(
        self, first: nn.Module, last: nn.Module, number: int | None, events: list[_Event]
    ) -> None:
        def note(what: Literal["begins", "ends"], *_: Any) -> None:
            # Forwards that are computed again are no layer's forward.
            if not is_recomputing():
                at_s = time.clock_gettime(time.CLOCK_MONOTONIC_RAW)
                events.append((what, number, at_s))

        self._handles += [
            first.register_forward_pre_hook(partial(note, "begins")),
            last.register_forward_hook(needs_no_input(partial(note, "ends"))),
        ]


def called_together(layers: list[nn.Module]) -> list[range]:
    """All layers, those together that one call may compute."""
    together = {each.start: each for each in neighbours(layers)}
    found, number = [], 0
    while number < len(layers):
        found.append(together.get(number, range(number, number + 1)))
        number = found[-1].stop
    return found


def _between(names: list[tuple[str, ...]], events: list[_Event]) -> Iterator[LayerSeconds]:
    """The bounds of each; a layer may be called several times, for some of its rows each."""
    least, most = [0.0] * len(names), [0.0] * len(names)
    began_s = since_s = ended_s = 0.0
    present: int | None = None
    for what, number, at_s in events:
        if number != present and (what == "begins" or number is None):
            if present is not None:
                most[present] += at_s - since_s
            present, since_s = number, at_s if number is None else ended_s
        if what == "begins":
            began_s = at_s
        elif number is not None:
            least[number] += at_s - began_s
        ended_s = at_s if what == "ends" or number is None else ended_s
    for each in zip(names, least, most, strict=True):
        yield LayerSeconds(*each)
