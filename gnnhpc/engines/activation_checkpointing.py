"""Activation checkpointing: a stage keeps its input and recomputes its forward in backward.

It takes less memory for one more forward (Chen et al. 2016, arXiv:1604.06174), by
`torch.utils.checkpoint`. The recomputation starts from the random numbers of the first forward. It
has no second effect: buffers, such as running statistics, keep what the first forward gave them.
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


def checkpointed(
    stage: nn.Module, forward: Callable[..., Tensor], x: Any, context: object, timer: StepTimer
) -> Tensor:
    """`forward(x, context)` of a stage, of which its input alone is kept until its backward.

    torch raises CheckpointError in the backward of a stage whose recomputed forward saves more or
    fewer tensors than the first one.
    """

    output: Tensor = checkpoint(
        forward,
        x,
        context,
        use_reentrant=False,
        context_fn=lambda: (contextlib.nullcontext(), recomputed(stage, timer)),
        determinism_check="none",
    )
    return output


@contextlib.contextmanager
def recomputed(stage: nn.Module, timer: StepTimer) -> Iterator[None]:
    """Around a recomputed forward of `stage`, whose seconds `timer` records."""
    start = time.perf_counter()
    try:
        with recomputing(), copied_buffers(stage):
            yield
    finally:
        timer.add_recomputation(time.perf_counter() - start)


@contextlib.contextmanager
def copied_buffers(stage: nn.Module) -> Iterator[None]:
    """Let the layers change copies of their buffers.

    Buffers are exchanged, not copied back: autograd may have saved them, and reports a value that
    is written as a change.
    """
    owners = [module._buffers for module in stage.modules() if module._buffers]
    held = [dict(buffers) for buffers in owners]
    for buffers in owners:
        buffers.update({n: None if b is None else b.clone() for n, b in buffers.items()})
    try:
        yield
    finally:
        for buffers, values in zip(owners, held, strict=True):
            buffers.clear()
            buffers.update(values)
