"""Hooks on layers' outputs that mark where each layer's backward begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node

from gnnhpc.engines.given import Given
from gnnhpc.engines.timing import StepTimer
from gnnhpc.graphs.sparse_rows import SparseRows


class BackwardMarks:
    """Of one forward through a stage's layers.

    `on_backward` are told of a layer too; nobody is while `is_forward()`: a layer may compute
    gradients itself, as of an energy, that reach outputs of those before it.
    """

    def __init__(
        self,
        timer: StepTimer,
        on_backward: Sequence[Callable[[str], None]],
        is_forward: Callable[[], bool],
    ) -> None:
        self._timer, self._on_backward, self._is_forward = timer, on_backward, is_forward
        self._made: list[tuple[Node, _Hook | None]] = []
        """What autograd has outputs from, or what they are views of; and the hook of the layer that
        made the latter."""

    def after_layers(
        self, names: Sequence[str], given: Given, output: Tensor | SparseRows
    ) -> Tensor | SparseRows:
        """`output` of one call, or a view of it; one of several layers marks backwards itself."""
        if given.is_changed and given.base_made_by is not None:
            self._hook_base(given.base_made_by)
        # A layer that hands its input on has no backward; the mark before is that layer's.
        if not isinstance(output, Tensor) or given.is_handed_on(output):
            return output
        if not output.requires_grad or not torch.is_grad_enabled():
            return output
        if output.is_leaf:
            # A parameter would keep the hook.
            output = output.view_as(output)
        timer = self._timer if len(names) == 1 else None
        hook = _Hook(names[-1], timer, self._on_backward, self._is_forward)
        output.register_hook(hook)
        self._remember(output, hook)
        return output

    def _hook_base(self, made_by: Node) -> None:
        """A view's hooks are lost with what it was; its base's are not, such as those of an earlier
        layer's output."""
        hook = next((hook for node, hook in self._made if node is made_by), None)
        if hook is not None:
            made_by.register_prehook(lambda gradients: None if hook.called else hook(gradients))

    def _remember(self, output: Tensor, hook: _Hook) -> None:
        base = output._base
        if base is None:
            made_by, hook_of_base = output.grad_fn, None
        else:
            made_by, hook_of_base = base.grad_fn, hook
        if made_by is not None and all(node is not made_by for node, _ in self._made):
            self._made.append((made_by, hook_of_base))


class _Hook:
    """Called when a layer's backward begins; changes no gradient. Without a timer it does not mark
    that."""

    def __init__(
        self,
        layer: str,
        timer: StepTimer | None,
        told: Sequence[Callable[[str], None]],
        is_forward: Callable[[], bool],
    ) -> None:
        self._layer, self._timer, self._told = layer, timer, told
        self._is_forward = is_forward
        self.called = False

    def __call__(self, _gradient: Any) -> None:
        if self._is_forward():
            return
        self.called = True
        if self._timer is not None:
            self._timer.layer_backward(self._layer, self._timer.clock.mark())
        for each in self._told:
            each(self._layer)
