"""A training step of an experiment whose mini-batches are drawn, timed in turns with others."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from gnnhpc.core.layout import Layout
from gnnhpc.distributed.allocator import keep_freed_memory
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.training.setup import set_up


def drawn_step(experiment: Experiment, *, as_in_a_run: bool = True) -> Callable[[], float]:
    """One step a turn, in this process: its seconds, drawing included.

    With the allocator's settings of a run, or as a program has it that sets nothing.
    """
    if as_in_a_run:
        keep_freed_memory()
    parts = set_up(experiment, Mesh(Layout(), 0, torch.device("cpu")), None)
    parts.stage.train()
    batches = parts.batches.open("train", 0, experiment.train_steps)
    drawn, optimizer = batches.__enter__(), parts.optimizer
    assert optimizer is not None

    def turn() -> float:
        # Held, so that its threads live as long as the turns.
        assert batches is not None
        began = time.perf_counter()
        step = next(drawn)
        optimizer.zero_grad(set_to_none=False)
        parts.engine.train_step(step)
        optimizer.step()
        return time.perf_counter() - began

    return turn
