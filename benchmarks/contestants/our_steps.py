"""Training steps of an experiment by the engine of a run, in one process and without records."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from gnnhpc.batches.batch import Batch
from gnnhpc.core.layout import Layout
from gnnhpc.distributed.allocator import keep_freed_memory, map_large_blocks_separately
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.training.setup import TrainingParts, set_up

MANY = 100_000
"""Training steps of the experiment: more than are taken."""


def built(settings: dict[str, Any], *, kept: bool = True) -> TrainingParts:
    """The parts of an experiment, in training mode.

    With `kept` the allocator is that of a run, which keeps freed memory.
    """
    experiment = Experiment.model_validate({"test_steps": 0, "train_steps": MANY} | settings)
    if kept:
        images = experiment.data.facts().kind == "images"
        (map_large_blocks_separately if images else keep_freed_memory)()
    place = torch.device("cuda" if experiment.device == "gpu" else "cpu")
    parts = set_up(experiment, Mesh(Layout(), 0, place), None)
    parts.stage.train()
    return parts


def opened(parts: TrainingParts) -> Iterator[Batch]:
    """The mini-batches of training."""
    with parts.batches.open("train", 0, MANY) as batches:
        yield from batches


def step(
    settings: dict[str, Any], *, fresh: bool = True, kept: bool = True, steps: int = 1
) -> Callable[[], float]:
    """Seconds a step, of so many steps a turn: zero gradients, `train_step`, Adam.

    With `fresh` every step takes a new mini-batch, and the time of taking it counts; otherwise all
    steps take the same one.
    """
    parts = built(settings, kept=kept)
    optimizer, batches = parts.optimizer, opened(parts)
    assert optimizer is not None
    first = next(batches)

    def turn() -> float:
        began = time.perf_counter()
        for _ in range(steps):
            batch = next(batches) if fresh else first
            parts.engine.gradients.zero()
            parts.engine.train_step(batch)
            optimizer.step()
            # A replayed step has to be over before the next is set.
            parts.timer.synchronize()
        return (time.perf_counter() - began) / steps

    return turn
