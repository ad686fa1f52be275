"""Forwards that are computed again in backward: how many, and how long they took by a second clock.

Whether a forward is one of them is asked of autograd, not of the engine that computes it.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from gnnhpc.core.schedule import Checkpoint
from gnnhpc.engines.stage import Stage
from gnnhpc.spec.experiment import Experiment

_OUTSIDE = -1
"""The number of the present backward where there is none."""


class _Present(threading.local):
    """The forward that the calling thread computes again."""

    began: float | None = None


@dataclass
class RecomputedForwards:
    """Counts those of a stage's parts by hooks of their first and last layers.

    Parts on several devices go backward at the same time, each in a thread of autograd's.
    """

    count: int = 0
    seconds: float = 0.0
    _present: _Present = field(default_factory=_Present)
    _adding: threading.Lock = field(default_factory=threading.Lock)

    def attach(self, stage: Stage) -> None:
        for part in stage.parts:
            part.layers[0].register_forward_pre_hook(self._begins)
            part.layers[-1].register_forward_hook(self._ends)

    def begin_step(self) -> None:
        self.count, self.seconds = 0, 0.0

    def _begins(self, _layer: nn.Module, _given: tuple[Any, ...]) -> None:
        within = torch._C._current_graph_task_id() != _OUTSIDE
        self._present.began = time.clock_gettime(time.CLOCK_MONOTONIC_RAW) if within else None

    def _ends(self, _layer: nn.Module, _given: tuple[Any, ...], _output: Any) -> None:
        began, self._present.began = self._present.began, None
        if began is not None:
            seconds = time.clock_gettime(time.CLOCK_MONOTONIC_RAW) - began
            with self._adding:
                self.seconds += seconds
                self.count += 1


def recomputed_forwards(experiment: Experiment, stage: Stage, *, is_first: bool) -> int | None:
    """How many a training step of this stage has, as `checkpoint` says.

    None for a later stage with nothing to train: its gradient passes through it only where an
    earlier one trains.
    """
    microbatches = experiment.microbatches
    counts: dict[Checkpoint, int] = {
        "never": 0,
        "except_last": microbatches - 1,
        "always": microbatches,
    }
    count = counts[experiment.checkpoint]
    if len(stage.parts) > 1:
        return count * len(stage.parts)
    if any(p.requires_grad for p in stage.parameters()):
        return count
    return 0 if is_first or count == 0 else None
