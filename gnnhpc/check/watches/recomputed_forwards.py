"""Forwards that are computed again in backward: how many, and how long they took by a second clock.

Whether a forward is one of them is asked of autograd, not of the engine that computes it.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from gnnhpc.core.schedule import Recomputation
from gnnhpc.engines.stage import Stage
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.models.one_call import needs_no_input

Place = tuple[int, int]
"""A part of the stage and a micro-batch."""
_OUTSIDE = -1
"""The number of the present backward where there is none."""


class _Present(threading.local):
    """The forward that the calling thread computes again."""

    began: float | None = None


def within_backward() -> bool:
    """Whether the calling thread computes for autograd."""
    return bool(torch._C._current_graph_task_id() != _OUTSIDE)


@dataclass
class RecomputedForwards:
    """Counts those of a stage's parts by hooks of their first and last layers.

    Parts on several devices go backward at the same time, each in a thread of autograd's.
    """

    places: list[Place] = field(default_factory=list)
    seconds: float = 0.0
    _present: _Present = field(default_factory=_Present)
    _adding: threading.Lock = field(default_factory=threading.Lock)

    def attach(self, stage: Stage) -> None:
        for place, part in enumerate(stage.parts):
            # Before the hooks of a user's layer, which are part of its forward.
            part.layers[0].register_forward_pre_hook(self._begins, prepend=True)
            part.layers[-1].register_forward_hook(needs_no_input(partial(self._ends, place)))

    def begin_step(self) -> None:
        self.places, self.seconds = [], 0.0

    def _begins(self, _layer: nn.Module, _given: tuple[Any, ...]) -> None:
        again = within_backward()
        self._present.began = time.clock_gettime(time.CLOCK_MONOTONIC_RAW) if again else None

    def _ends(self, place: int, _layer: nn.Module, given: tuple[Any, ...], _output: Any) -> None:
        began, self._present.began = self._present.began, None
        if began is not None:
            seconds = time.clock_gettime(time.CLOCK_MONOTONIC_RAW) - began
            with self._adding:
                self.seconds += seconds
                self.places.append((place, given[1].microbatch))


def recomputed_forwards(
    experiment: Experiment, stage: Stage, *, is_first: bool
) -> list[Place] | None:
    """Which a training step of this stage has, as `checkpoint` says, sorted.

    None for a stage with parts that have nothing to train before its first that has, but for the
    model's first part: gradients pass through these only where an earlier stage trains.
    """
    microbatches = experiment.microbatches
    counts: dict[Recomputation, int] = {
        "never": 0,
        "except_last": microbatches - 1,
        "always": microbatches,
    }
    count = counts[experiment.activation_checkpointing]
    # Gradients pass through what follows the first that trains, of those called by themselves.
    trains = [any(p.requires_grad for p in part.parameters()) for part in stage.called]
    before = trains.index(True) if True in trains else len(trains)
    whole = len(stage.parts) > 1 and not stage.apart
    if before > int(is_first) and count and not whole:
        return None
    first = 0 if whole else before
    return [(part, m) for part in range(first, len(stage.parts)) for m in range(count)]
