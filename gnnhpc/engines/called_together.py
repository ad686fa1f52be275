"""Neighbouring layers of a stage that one call computes, told and timed as each layer by itself."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from gnnhpc.core.outline import LayerOutline
from gnnhpc.engines.clock import Mark
from gnnhpc.engines.timing import StepTimer
from gnnhpc.graphs.features import Rows
from gnnhpc.models.context import Context
from gnnhpc.models.one_call import (
    OneCall,
    call_hooks_after,
    call_hooks_before,
    is_watched_within,
)
from gnnhpc.models.recomputation import is_recomputing

OnLayer = Callable[[LayerOutline, int, Rows, Rows, Context], None]
"""Told of a layer, how many change the rows up to it, its input, its output and the context."""


@dataclass(frozen=True)
class CalledTogether:
    """For the micro-batches of one training step."""

    call: OneCall
    layers: Sequence[nn.Module]
    outlines: Sequence[LayerOutline]
    changes: Sequence[int]
    """How many layers change the rows up to each."""
    timer: StepTimer | None
    on_layer: Sequence[OnLayer]

    def forward(
        self, x: Tensor, context: Context, start: Mark | None
    ) -> tuple[Tensor, Mark | None] | None:
        """The last layer's output, and when it ended, where it began at `start`; None where the
        layers have to be called one by one."""
        if is_watched_within(self.layers) or not self.call.takes(x):
            return None
        layers = self.layers
        given = call_hooks_before(layers[0], (x, context))
        outputs = self.call.forward(given[0], self._tell_backward)
        last = outputs.last
        if layers[-1]._forward_hooks:
            last = call_hooks_after(layers[-1], (outputs.between[-1], context), last)
        for told in self.on_layer:
            inputs, found = [given[0], *outputs.between], [*outputs.between, last]
            for n, outline in enumerate(self.outlines):
                told(outline, self.changes[n], inputs[n], found[n], context)
        return last, self._tell_forward(start, outputs.ended_s)

    def _tell_forward(self, start: Mark | None, ended_s: Sequence[float]) -> Mark | None:
        """What is done around the call is of the first and the last layer."""
        timer, again = self.timer, is_recomputing()
        if timer is None or start is None:
            return None
        marks = [start, *ended_s[:-1], timer.clock.mark()]
        for outline, (began, ended) in zip(self.outlines, itertools.pairwise(marks), strict=True):
            if again:
                timer.layer_backward(outline.name, began)
            else:
                timer.layer_forward(outline.name, began, ended)
        return marks[-1]

    def _tell_backward(self, began_s: float, ended_s: Sequence[float]) -> None:
        """Of the last layer, which goes backward first, when the gradient of its output was there;
        each other layer begins where the one after it has ended."""
        if self.timer is None:
            return
        for outline, at in zip(self.outlines[::-1], [began_s, *ended_s[:0:-1]], strict=True):
            self.timer.layer_backward(outline.name, at)
