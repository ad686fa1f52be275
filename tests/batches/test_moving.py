"""What a copy reads is not lent again before the copy has ended."""

from __future__ import annotations

import torch

from gnnhpc.batches.prefetch import Ring
from gnnhpc.graphs.device_copies import Copying, moved
from gnnhpc.kernels.sample_neighbors import FRESH


def grown() -> Ring:
    ring = Ring(1)
    ring.lend().empty(1000, torch.int32)
    return ring


def test_a_slot_is_lent_again_only_after_its_copies_have_ended() -> None:
    ring, copying, ended = grown(), Copying(), [False, False]
    lent = ring.lend()
    for number in range(2):
        copying.hold(lent.empty(100, torch.int32), lambda number=number: ended[number])
    del lent
    other = torch.empty(1)
    for so_far in ((False, False), (True, False)):
        ended[:] = so_far
        copying.hold(other, lambda: True)
        assert ring.lend() is FRESH
    ended[:] = (True, True)
    copying.hold(other, lambda: True)
    assert ring.lend() is not FRESH


def test_on_a_cpu_nothing_is_copied() -> None:
    x = torch.arange(3)
    assert moved(x, "cpu") is x
