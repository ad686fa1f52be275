"""Forwards that are computed again are counted whichever thread of autograd's computes them."""

from __future__ import annotations

import threading

import torch
from torch import Tensor, nn

from gnnhpc.check.watches.recomputed_forwards import (
    Place,
    RecomputedForwards,
    recomputed_forwards,
)
from gnnhpc.core.layer_specs import LayerSpec
from gnnhpc.engines.autograd import computed_again
from gnnhpc.engines.clock import Clock
from gnnhpc.engines.stage import Stage, build_stage
from gnnhpc.engines.timing import StepTimer
from gnnhpc.experiment.stage_cut import outline
from gnnhpc.models.context import Context
from gnnhpc.models.recomputation import ForwardState, is_recomputing
from tests.tools.cells import gat

WAIT_S = 60


class Meeting(nn.Linear):
    """A layer that all parts are in at one time when they compute it again."""

    def __init__(self, parts: threading.Barrier) -> None:
        super().__init__(2, 2)
        self.parts = parts

    def forward(self, x: Tensor, context: Context | None = None) -> Tensor:
        if is_recomputing():
            self.parts.wait(WAIT_S)
        return super().forward(x)


def expected(parts: list[range], *, is_first: bool) -> list[Place] | None:
    """Of a stage of GAT that holds these layers, of two micro-batches."""
    experiment = gat(
        layout="pp2", microbatches=2, schedule="zbv", activation_checkpointing="always"
    )
    layers = outline(experiment)
    assert [layer.parameters > 0 for layer in layers if layer.parameters is not None] == [
        *(False, True, False, False, True, False)
    ]
    stage = build_stage(experiment, layers, parts, StepTimer(Clock(torch.device("cpu"))))
    return recomputed_forwards(experiment, stage, is_first=is_first)


def test_what_is_computed_again_follows_from_what_trains() -> None:
    """Gradients pass through a part that has nothing to train where one before it in the model
    trains, of which a stage knows its own alone."""
    dropout, attention, last = range(1), range(1, 3), range(5, 6)
    assert expected([attention, last], is_first=True) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert expected([dropout, range(4, 6)], is_first=True) == [(1, 0), (1, 1)]
    # The log-softmax of the model is on the first stage under ZBV, and what trains on others.
    assert expected([dropout, last], is_first=True) is None
    assert expected([range(2, 3), range(3, 5)], is_first=False) is None
    assert expected([dropout], is_first=True) == []


def test_parts_that_go_backward_at_one_time_are_counted_each() -> None:
    """As those of torchgpipe on several GPUs, of which autograd has a thread each."""
    met = threading.Barrier(2)
    outlines = [LayerSpec(name, (2,), (2,)) for name in ("first", "second")]
    stage = Stage(outlines, [Meeting(met), Meeting(met)], timer=None)
    parts = stage.cut_into([range(1), range(1, 2)], timed=False)
    seen = RecomputedForwards()
    seen.attach(stage)
    seen.begin_step()

    def loss(part: Stage) -> Tensor:
        def forward(x: Tensor) -> Tensor:
            output: Tensor = part(x, Context())
            return output

        return computed_again(forward, torch.ones(3, 2), ForwardState(torch.nn.Module())).sum()

    losses = [loss(part) for part in parts]
    threads = [threading.Thread(target=each.backward) for each in losses]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen.places) == [(0, 0), (1, 0)]
    assert seen.seconds > 0
