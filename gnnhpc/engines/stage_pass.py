"""A micro-batch's backward through a stage that one call computes: autograd has no part in it.

In a micro-batch of few images autograd's own code, which the kernel has driven out of the caches,
takes as long as a tenth of a layer. The stage's output is a leaf, as its input is; the hooks of
both are called as autograd calls them, and what somebody puts before or after them is autograd's.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gnnhpc.engines.autograd import backward, check_gradient
from gnnhpc.models.added_gradients import tell_added
from gnnhpc.models.one_call import ComputeBackward


class StagePass:
    """Between a micro-batch's forward and its backward: `given` is what the call was given,
    `output` what it gave."""

    def __init__(self, given: Tensor, output: Tensor, compute: ComputeBackward) -> None:
        self._given, self._output = given, output
        self._compute: ComputeBackward | None = compute
        self._version = given._version

    def backward(self, result: Tensor, gradient: Tensor | None) -> None:
        """From the output, or from what was made of it, such as the loss.

        Raises GnnhpcError for a gradient of another shape, RuntimeError the second time and for an
        input that was changed since the forward.
        """
        given, compute = self._given, self._compute
        if compute is None:
            raise RuntimeError("a stage's backward was called a second time")
        self._compute = None
        is_output = result is self._output and gradient is not None
        if not is_output:
            backward(result, gradient)
            gradient = self._output.grad
        if gradient is None:
            return
        # As autograd calls hooks: they may change parameters in place.
        with torch.no_grad():
            if is_output:
                check_gradient(result, gradient)
                gradient = _through_hooks(result, gradient.to(result.dtype))
            if given._version != self._version:
                raise RuntimeError("a stage's input was changed before its backward")
            found = compute(gradient, given.requires_grad)
            if found is not None and given.is_leaf:
                _arrive(given, found)
        if found is not None and not given.is_leaf:
            backward(given, found)


def _through_hooks(leaf: Tensor, gradient: Tensor) -> Tensor:
    """What `Tensor.register_hook`'s make of it, in their order.

    Raises RuntimeError for one that makes another kind of tensor of it, as autograd does.
    """
    for hook in tuple((leaf._backward_hooks or {}).values()):
        changed = hook(gradient)
        if changed is None:
            continue
        if _kind(changed) != _kind(gradient):
            raise RuntimeError(f"a hook made {_kind(changed)} of a gradient of {_kind(gradient)}")
        gradient = changed
    return gradient


def _kind(tensor: Tensor) -> tuple[torch.dtype, torch.device, list[int]]:
    return tensor.dtype, tensor.device, list(tensor.shape)


def _arrive(leaf: Tensor, gradient: Tensor) -> None:
    """Where autograd ends."""
    gradient = _through_hooks(leaf, gradient)
    leaf.grad = gradient if leaf.grad is None else leaf.grad + gradient
    tell_added([leaf])
