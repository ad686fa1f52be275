"""Forwards that are computed again are counted whichever thread of autograd's computes them."""

from __future__ import annotations

import threading

import torch
from torch import Tensor, nn

from gnnhpc.check.watches.recomputed_forwards import RecomputedForwards
from gnnhpc.core.outline import LayerOutline
from gnnhpc.engines.autograd import computed_again
from gnnhpc.engines.stage import Stage
from gnnhpc.models.context import Context
from gnnhpc.models.recomputation import is_recomputing

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


def test_parts_that_go_backward_at_one_time_are_counted_each() -> None:
    """As those of torchgpipe on several GPUs, of which autograd has a thread each."""
    met = threading.Barrier(2)
    outlines = [LayerOutline(name, (2,), (2,)) for name in ("first", "second")]
    stage = Stage(outlines, [Meeting(met), Meeting(met)], timer=None)
    parts = stage.cut_into([range(1), range(1, 2)], timed=False)
    seen = RecomputedForwards()
    seen.attach(stage)
    seen.begin_step()

    def loss(part: Stage) -> Tensor:
        def forward(x: Tensor) -> Tensor:
            output: Tensor = part(x, Context())
            return output

        return computed_again(forward, torch.ones(3, 2), ()).sum()

    losses = [loss(part) for part in parts]
    threads = [threading.Thread(target=each.backward) for each in losses]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen.places) == [(0, 0), (1, 0)]
    assert seen.seconds > 0
