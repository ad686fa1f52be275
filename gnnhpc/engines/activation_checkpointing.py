"""Activation checkpointing: a stage keeps its input and recomputes its forward in backward.

It takes less memory for one more forward (Chen et al. 2016, arXiv:1604.06174), by
`torch.utils.checkpoint`. The recomputation starts from the random numbers and the buffers of the
first forward. It has no second effect: buffers, such as running statistics, keep what the first
forward gave them.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gnnhpc.engines.step_timer import StepTimer
from gnnhpc.models.layers.batchnorm import recomputing

Buffers = list[dict[str, Tensor | None]]


def checkpointed(
    stage: nn.Module, forward: Callable[..., Tensor], x: Any, context: object, timer: StepTimer
) -> Tensor:
    """`forward(x, context)` of a stage, of which its input alone is kept until its backward.

    torch raises CheckpointError in the backward of a stage whose recomputed forward saves more or
    fewer tensors than the first one.
    """

    def contexts() -> tuple[Any, Any]:
        return contextlib.nullcontext(), recomputed(stage, buffers_of(stage), timer)

    output: Tensor = checkpoint(
        forward, x, context, use_reentrant=False, context_fn=contexts, determinism_check="none"
    )
    return output


@contextlib.contextmanager
def recomputed(stage: nn.Module, buffers: Buffers, timer: StepTimer) -> Iterator[None]:
    """Around a recomputed forward of `stage`, whose seconds `timer` records."""
    start = time.perf_counter()
    try:
        with recomputing(), exchanged_buffers(stage, buffers):
            yield
    finally:
        timer.add_recomputation(time.perf_counter() - start)


def buffers_of(stage: nn.Module) -> Buffers:
    """Copies of the buffers of each module that has any."""
    return [
        {name: None if buffer is None else buffer.clone() for name, buffer in owner.items()}
        for owner in _owners(stage)
    ]


@contextlib.contextmanager
def exchanged_buffers(stage: nn.Module, buffers: Buffers) -> Iterator[None]:
    """Let the layers use and change `buffers`, as `buffers_of` returns them.

    Buffers are exchanged, not copied back: autograd may have saved them, and reports a value that
    is written as a change.
    """
    owners = _owners(stage)
    held = [dict(owner) for owner in owners]
    for owner, values in zip(owners, buffers, strict=True):
        owner.update(values)
    try:
        yield
    finally:
        for owner, values in zip(owners, held, strict=True):
            owner.clear()
            owner.update(values)


def _owners(stage: nn.Module) -> Buffers:
    return [module._buffers for module in stage.modules() if module._buffers]
