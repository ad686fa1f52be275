"""Buffers that blocks are drawn into are pinned for a GPU, those of their parts too."""

from __future__ import annotations

import pytest
import torch

from gnnhpc.batches.prefetch import Ring

pytestmark = pytest.mark.gpu


def test_tensors_of_a_pinned_slot_are_pinned_and_used_again() -> None:
    ring = Ring(1, pinned=True)
    ring.lend().empty(1000, torch.int32)
    places = set()
    for step in range(3):
        made = ring.lend().empty(1000, torch.int32).fill_(step)
        assert made.is_pinned()
        assert made.to("cuda").eq(step).all()
        places.add(made.data_ptr())
        del made
    assert len(places) == 1
