"""Threads, affinity, kernels, and ranks of other code."""

from __future__ import annotations

import functools
import os
from typing import Any

import torch

from gnnhpc.kernels import build, vig, vig_layers, vig_torch
from gnnhpc.kernels.vig_torch import Weights
from gnnhpc.models.vig import fused
from gnnhpc.records import provenance
from gnnhpc.training.loop import TrainingLoop
from tests.defects import settings
from tests.defects.defect import planted
from tests.defects.patching import Steps, around, rank, replace

KIND = "threads, affinity, kernels"
defect = functools.partial(planted, kind=KIND)


def during_steps(before: Any, after: Any) -> None:
    """Call something before each step and its opposite after it."""

    def step(true: Any, trainer: Trainer, *args: Any) -> Any:
        before()
        try:
            return true(trainer, *args)
        finally:
            after()

    around(Trainer, "_train_step", step)


@defect("one thread where two are recorded", setting=settings.VIG_TWO_THREADS)
def one_thread() -> None:
    """Only while it trains: asked before and after, torch says two."""
    during_steps(lambda: torch.set_num_threads(1), lambda: torch.set_num_threads(2))


@defect("one thread from the start where two are asked for", setting=settings.VIG_TWO_THREADS)
def one_thread_always() -> None:
    around(torch, "set_num_threads", lambda true, count: true(1))


@defect("a rank pinned to one CPU while it trains", setting=settings.VIG_TWO_THREADS)
def pinned() -> None:
    allowed = os.sched_getaffinity(0)
    if rank() == 1:
        during_steps(
            lambda: os.sched_setaffinity(0, {min(allowed)}),
            lambda: os.sched_setaffinity(0, allowed),
        )


@defect("one rank without a compiler", setting=settings.VIG)
def no_compiler() -> None:
    if rank() == 1:
        replace(build, "load_kernel", lambda name: None)


@defect("other kernels than recorded, later in the run", setting=settings.VIG)
def other_kernels() -> None:
    steps = Steps()

    def chosen(true: Any, *args: Any) -> Any:
        return vig_torch if steps.late and rank() == 1 else true(*args)

    around(fused, "kernels_for", chosen)


@defect("a kernel that is wrong in the third digit", setting=settings.VIG)
def wrong_kernel() -> None:
    def off(true: Any, *args: Any, **kwargs: Any) -> Any:
        result = true(*args, **kwargs)
        return result._replace(out=result.out * 1.001)

    around(vig, "forward", off)
    around(vig_layers.Layers, "forward", off)


@defect("a kernel's backward wrong in one parameter", setting=settings.VIG)
def wrong_backward() -> None:
    def off(true: Any, *args: Any, into: Weights | None = None, **kwargs: Any) -> Any:
        before = 0.0 if into is None else into.gamma1.clone()
        d_x, weights = true(*args, into=into, **kwargs)
        # What is added to a gradient is given back as that gradient.
        weights.gamma1.add_(weights.gamma1 - before, alpha=0.01)
        return d_x, weights

    around(vig, "backward", off)

    def of_layers(true: Any, *args: Any, **kwargs: Any) -> Any:
        into: vig_layers.Gradients = args[-1]
        before = [weights.gamma1.clone() for weights in into.tensors]
        found = true(*args, **kwargs)
        for weights, at in zip(into.tensors, before, strict=True):
            weights.gamma1.add_(weights.gamma1 - at, alpha=0.01)
        return found

    around(vig_layers.Layers, "backward", of_layers)


@defect("a rank that runs other code", setting=settings.VIG)
def other_code() -> None:
    around(provenance, "code_digest", lambda true: true() if rank() == 0 else "0" * 16)
