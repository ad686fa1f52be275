"""Activation checkpointing of a stage: its forward is recomputed in backward (Chen et al. 2016,
arXiv:1604.06174), by `torch.utils.checkpoint`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gnnhpc.engines.step_timer import StepTimer
from gnnhpc.models.recomputation import recomputing


def checkpointed(
    stage: nn.Module, forward: Callable[..., Tensor], x: Any, context: object, timer: StepTimer
) -> Tensor:
    """`forward(x, context)` of a stage, of which its input alone is kept until its backward."""

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return contextlib.nullcontext(), recomputed(stage, timer)

    output: Tensor = checkpoint(
        forward, x, context, use_reentrant=False, context_fn=contexts, determinism_check="none"
    )
    return output


@contextlib.contextmanager
def recomputed(stage: nn.Module, timer: StepTimer) -> Iterator[None]:
    began_s = time.perf_counter()
    try:
        with recomputing(stage):
            yield
    finally:
        timer.add_recomputation(time.perf_counter() - began_s)
