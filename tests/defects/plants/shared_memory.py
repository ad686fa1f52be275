"""Tensors that pass through memory of two ranks: too early, too late, from another place."""

from __future__ import annotations

import functools
import time
from typing import Any

import torch
from torch import Tensor

from gnnhpc.engines.shared_channels import SharedReceiver, SharedSender
from gnnhpc.kernels.channel import Slots
from tests.defects import settings
from tests.defects.defect import planted
from tests.defects.patching import Steps, around

KIND = "shared memory"
defect = functools.partial(planted, kind=KIND)


@defect("a tensor counted as sent before it is copied", setting=settings.VIG)
def counted_early() -> None:
    def early(true: Any, slots: Slots, tensor: Tensor, timeout_ms: int) -> Any:
        slot = newest_slot(slots, tensor, ahead=1)
        sent = true(slots, slot.clone(), timeout_ms)
        time.sleep(0.01)
        slot.copy_(tensor)
        return sent

    around(Slots, "send", early)


@defect("a slot written before it was taken, later in the run", setting=settings.VIG)
def overwritten() -> None:
    steps = Steps()

    def twice(true: Any, sender: SharedSender, tensor: Tensor) -> Any:
        """As a channel of too few slots would: into the one before too."""
        if steps.late:
            newest_slot(sender._slots, tensor).copy_(tensor)
        return true(sender, tensor)

    def late(true: Any, receiver: SharedReceiver, into: Tensor) -> None:
        time.sleep(0.01)
        true(receiver, into)

    around(SharedSender, "send", twice)
    around(SharedReceiver, "take", late)


@defect("slots counted otherwise by the rank that takes", setting=settings.VIG_1F1B)
def counted_otherwise() -> None:
    def opened(true: Any, receiver: SharedReceiver) -> None:
        true(receiver)
        slots = receiver._slots
        assert slots is not None
        address, count, slot_bytes = slots._place
        slots._place = (address, count - 1, slot_bytes)

    around(SharedReceiver, "open", opened)


def newest_slot(slots: Slots, like: Tensor, ahead: int = 0) -> Tensor:
    """Where the last tensor lies that was sent, or the next one will."""
    _, count, slot_bytes = slots._place
    line = 64
    number = int(slots._memory[:8].view(torch.int64)) + ahead - 1
    stride = line + (slot_bytes + line - 1) // line * line
    start = 2 * line + number % count * stride + line
    return slots._memory[start : start + like.nbytes].view(like.dtype).view(like.shape)
