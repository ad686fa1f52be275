"""Backward from a given gradient, and forwards that are computed again in backward.

A micro-batch's activations are not kept but for its input, and its forward is computed again when
the gradient of its output arrives: less memory for one forward more (Chen et al. 2016,
arXiv:1604.06174). `torch.utils.checkpoint` does the same by a hook for each tensor that autograd
saves; it keeps what a layer holds otherwise.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.variable import Variable

from gnnhpc.core.errors import GnnhpcError
from gnnhpc.graphs.sparse_rows import SparseRows
from gnnhpc.models.recomputation import ForwardState

Forward = Callable[[Tensor | SparseRows], Tensor]
_engine: Any = Variable._execution_engine


def backward(result: Tensor, gradient: Tensor | None) -> None:
    """Backward from a loss, or from an output whose gradient the next stage has sent.

    `result.backward(gradient)` is the same, but its Python takes a tenth of a millisecond where a
    kernel has driven that out of the caches, and compares the two shapes by means of sympy, which
    takes half a second to import. Megatron-LM's schedules call the engine of autograd so too.
    """
    if gradient is None:
        if result.numel() != 1:
            raise GnnhpcError(
                f"backward begins with a loss of one number, not of {list(result.shape)}"
            )
        # A copy, as a hook may change it in place.
        gradient = _one(result.dtype, result.device).clone().view_as(result)
    if gradient.shape != result.shape:
        raise GnnhpcError(
            f"a gradient of {list(gradient.shape)} was given for {list(result.shape)}"
        )
    _engine.run_backward(
        (result,),
        (gradient,),
        keep_graph=False,
        create_graph=False,
        inputs=(),
        allow_unreachable=True,
        accumulate_grad=True,
    )


@functools.cache
def _one(dtype: torch.dtype, device: torch.device) -> Tensor:
    """The gradient of a loss."""
    return torch.ones((), dtype=dtype, device=device)


def computed_again(forward: Forward, x: Tensor | SparseRows, state: ForwardState) -> Tensor:
    """`forward(x)`, of which `x` alone is kept, beside the buffers and generators of its `state`.

    For forwards with something to train: the result needs a gradient.
    """
    # Without an input that needs a gradient autograd would not call the backward.
    trained = torch.empty(0, requires_grad=True)
    result: Tensor = _ComputedAgain.apply(trained, forward, x, state)  # type: ignore[no-untyped-call]
    return result


class _ComputedAgain(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        trained: Tensor,
        forward: Forward,
        x: Tensor | SparseRows,
        state: ForwardState,
    ) -> Tensor:
        ctx.forward, ctx.random = forward, _RandomState(x)
        ctx.state, ctx.before = state, state.before()
        ctx.save_for_backward(*([x] if isinstance(x, Tensor) else []))
        ctx.x = None if isinstance(x, Tensor) else x
        return forward(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, Tensor | None, None]:
        x = ctx.x
        if x is None:
            (saved,) = ctx.saved_tensors
            x = saved.detach().requires_grad_(ctx.needs_input_grad[2])
        with torch.enable_grad(), ctx.state.again(ctx.before), ctx.random.again():
            output = ctx.forward(x)
        with torch.enable_grad():
            backward(output, gradient)
        return None, None, x.grad if isinstance(x, Tensor) else None, None


class _RandomState:
    """Torch's generators at a forward, for layers that draw from them."""

    def __init__(self, x: Tensor | SparseRows) -> None:
        device = (x if isinstance(x, Tensor) else x.values).device
        self._devices = [device] if device.type == "cuda" else []
        self._cpu = torch.get_rng_state()
        self._cuda = [torch.cuda.get_rng_state(each) for each in self._devices]

    @contextlib.contextmanager
    def again(self) -> Iterator[None]:
        with torch.random.fork_rng(self._devices):
            torch.set_rng_state(self._cpu)
            for device, state in zip(self._devices, self._cuda, strict=True):
                torch.cuda.set_rng_state(state, device)
            yield
