"""Activation checkpointing: a stage keeps its input and recomputes its forward in backward.

Less memory for one more forward (Chen et al. 2016, arXiv:1604.06174), by `torch.utils.checkpoint`.
The recomputation starts from torch's random numbers of the first forward. It leaves no trace:
buffers, such as running statistics, keep the values that the first forward gave them.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gnnhpc.graphs.features import Rows
from gnnhpc.models.layers.batchnorm import is_recomputing, recomputing

__all__ = ["checkpointed", "is_recomputing"]

Recomputed = Callable[[float, float], None]
"""Receives when a recomputation started and ended, in seconds of `time.perf_counter`."""


def checkpointed(
    stage: nn.Module,
    forward: Callable[[Rows], Tensor],
    x: Rows,
    on_recomputed: Recomputed | None = None,
) -> Tensor:
    """`forward(x)` through the layers of `stage`, which is computed once more in backward.

    `on_recomputed` is called after the recomputation; the clock is read only where it is given.
    torch raises CheckpointError in backward where a recomputed forward saves other tensors than the
    first one, as of a layer that depends on state that it changes.
    """

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return contextlib.nullcontext(), _recomputation(stage, on_recomputed)

    # torch sets the context for the recomputation up in the first forward.
    output: Tensor = checkpoint(forward, x, use_reentrant=False, context_fn=contexts)
    return output


@contextlib.contextmanager
def _recomputation(stage: nn.Module, on_recomputed: Recomputed | None) -> Iterator[None]:
    start = 0.0 if on_recomputed is None else time.perf_counter()
    try:
        with recomputing(), _copied_buffers(stage):
            yield
    finally:
        if on_recomputed is not None:
            on_recomputed(start, time.perf_counter())


@contextlib.contextmanager
def _copied_buffers(stage: nn.Module) -> Iterator[None]:
    """Let the layers change copies of their buffers.

    Buffers are exchanged, not copied back, as autograd may have saved them.
    """
    held = [(module._buffers, dict(module._buffers)) for module in stage.modules()]
    held = [(buffers, values) for buffers, values in held if values]
    for buffers, values in held:
        buffers.update({n: None if b is None else b.clone() for n, b in values.items()})
    try:
        yield
    finally:
        for buffers, values in held:
            buffers.clear()
            buffers.update(values)
