"""Copies of tensors to a device, from pinned memory without waiting for them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor


class Copying:
    """Sources of copies that are under way. Any thread may ask."""

    def __init__(self) -> None:
        self._sources: deque[tuple[Callable[[], bool], Tensor]] = deque()
        self._changing = threading.Lock()

    def hold(self, source: Tensor, ended: Callable[[], bool]) -> None:
        """Keep `source` until its copy has `ended`, which is asked whenever another is held."""
        # A ring lends memory again once no tensor in it is held: a copy under way would then read
        # what the next mini-batch writes there.
        with self._changing:
            while self._sources and self._sources[0][0]():
                self._sources.popleft()
            self._sources.append((ended, source))


COPYING = Copying()
"""The copies of this process."""


def moved(x: Tensor, device: torch.device | str) -> Tensor:
    """`x` on a device, for whatever its current stream does next."""
    device = torch.device(device)
    if device.type != "cuda" or x.device.type != "cpu" or not x.is_pinned():
        return x.to(device)
    there = x.to(device, non_blocking=True)
    copied = torch.cuda.Event()
    copied.record(torch.cuda.current_stream(device))
    COPYING.hold(x, copied.query)
    return there


def wait_for(device: torch.device) -> None:
    """Wait until a GPU has run what its current stream holds."""
    if device.type == "cuda":
        # The host sleeps while it waits for a blocking event.
        event = torch.cuda.Event(blocking=True)
        event.record(torch.cuda.current_stream(device))
        event.synchronize()
