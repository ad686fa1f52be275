"""Neighbouring layers of a stage that one call computes, told and timed as each layer by itself."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from torch import Tensor, nn

from gnnhpc.core.layer_specs import LayerSpec, outline_mismatch
from gnnhpc.engines.clock import Mark
from gnnhpc.engines.timing import StepTimer
from gnnhpc.graphs.features import Rows
from gnnhpc.models.context import Context
from gnnhpc.models.layers.batchnorm import is_recomputing
from gnnhpc.models.one_call import (
    OneCall,
    any_hook,
    call_hooks_after,
    call_hooks_before,
    hooks_within,
)

OnLayer = Callable[[LayerSpec, int, Rows, Rows, Context], None]
"""Told of a layer, how many change the rows up to it, its input, its output and the context."""


class CalledTogether:
    """For the micro-batches of one training step; `changes` is how many layers change the rows up
    to each."""

    def __init__(
        self,
        call: OneCall,
        layers: Sequence[nn.Module],
        outlines: Sequence[LayerSpec],
        changes: Sequence[int],
        timer: StepTimer | None,
        on_layer: Sequence[OnLayer],
    ) -> None:
        self.call, self.layers, self.outlines = call, layers, outlines
        self._changes, self._timer, self._on_layer = changes, timer, on_layer
        self._within = hooks_within(layers)
        self._names = [outline.name for outline in outlines]

    def forward(
        self, x: Tensor, context: Context, start: Mark | None
    ) -> tuple[Tensor, Mark | None] | None:
        """The last layer's output, and when it ended, where it began at `start`; None where the
        layers have to be called one by one.

        Raises ValueError where a hook before the first layer changes x to what is not taken, and
        GnnhpcError for an output whose shape is not that of the last layer's outline.
        """
        if any_hook(self._within) or not self.call.takes(x):
            return None
        layers = self.layers
        given = call_hooks_before(layers[0], (x, context))[0]
        if given is not x and not self.call.takes(given):
            raise ValueError(f"{given.dtype} {list(given.shape)} are no input of these layers")
        outputs = self.call.forward(given, self._tell_backward)
        last = outputs.last
        if layers[-1]._forward_hooks:
            last, before = call_hooks_after(layers[-1], outputs.between, context, last)
            if last is not outputs.last and before is not None:
                # Another output may be made of the input too, which stays within the call.
                before.register_hook(_refuse)
        # Not len, which for a tensor is a function of torch's in Python.
        if last.shape != (given.shape[0], *self.outlines[-1].shape):
            raise outline_mismatch(self.outlines[-1], given.shape[0], last.shape)
        if self._on_layer:
            between = outputs.between()
            for n, (before, after) in enumerate(itertools.pairwise([given, *between, last])):
                for told in self._on_layer:
                    told(self.outlines[n], self._changes[n], before, after, context)
        return last, self._tell_forward(start, outputs.ended_s)

    def _tell_forward(self, start: Mark | None, ended_s: Sequence[float]) -> Mark | None:
        """What is done around the call is of the first and the last layer."""
        timer = self._timer
        if timer is None or start is None:
            return None
        marks = [start, *ended_s]
        marks[-1] = timer.clock.mark()
        if is_recomputing():
            timer.layers_backward(self._names, marks)
        else:
            timer.layers_forward(self._names, marks)
        return marks[-1]

    def _tell_backward(self, began_s: float, ended_s: Sequence[float]) -> None:
        """Of the last layer, which goes backward first, when the gradient of its output was there;
        each other layer begins where the one after it has ended."""
        if self._timer is not None:
            self._timer.layers_backward(self._names[::-1], [began_s, *ended_s[:0:-1]])


def _refuse(_gradient: Tensor) -> None:
    raise RuntimeError("a hook gave its layer's input a gradient, which one call of layers loses")
