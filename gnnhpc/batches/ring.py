"""A ring of buffers that mini-batches are drawn into, each used again once nobody holds it.

A slot is lent to one mini-batch and comes back when the last tensor in it is gone, be it held by
the mini-batch, by what a layer saved for its backward pass, or by whoever looks at a part of it. So
none is ever overwritten while it is in use, and nobody has to say when a step is over.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gnnhpc.kernels.memory import FRESH, Memory

_ALIGNED = 64
"""Bytes: each tensor begins at such a multiple, as torch's own do."""
_SPARE = 4
"""A slot that was too small grows by one in so many more than was asked for."""


class Ring:
    """At most so many `slots`, which grow to what a mini-batch needs. They are `pinned` for a GPU.

    Any thread may ask. The slot that came back last is lent first, so that those beyond need take
    no memory. Where all are held a mini-batch has memory of its own, so that nobody waits for one
    who keeps mini-batches.
    """

    def __init__(self, slots: int, *, pinned: bool = False) -> None:
        self._pinned = pinned
        # Without a lock: a finalizer runs in any thread, whatever that is in the middle of.
        self._free = deque(_Slot(self._buffer(0)) for _ in range(slots))
        self._needed = 0
        self._changing = threading.Lock()

    def lend(self) -> Memory:
        """Memory for one mini-batch."""
        try:
            slot = self._free.pop()
        except IndexError:
            return FRESH
        needed = self._needed
        if needed > len(slot.buffer):
            slot.buffer = self._buffer(needed + needed // _SPARE)
        lent = slot.buffer.numpy()
        # All tensors in it hold this array, and it is theirs alone.
        weakref.finalize(lent, self._free.append, slot).atexit = False
        return _Lent(self, lent)

    def needs(self, size: int) -> None:
        """A mini-batch needed so many bytes."""
        with self._changing:
            self._needed = max(self._needed, size)

    def _buffer(self, size: int) -> Tensor:
        return torch.empty(size, dtype=torch.uint8, pin_memory=self._pinned)


@dataclass(eq=False)
class _Slot:
    buffer: Tensor
    """uint8 [capacity]"""


class _Lent:
    """A slot's memory, given out from its beginning; what does not fit is fresh."""

    def __init__(self, ring: Ring, bytes_: NDArray[np.uint8]) -> None:
        self._ring, self._bytes = ring, bytes_
        self._used = 0
        self._giving = threading.Lock()

    def empty(self, count: int, dtype: torch.dtype) -> Tensor:
        size = count * dtype.itemsize
        with self._giving:
            first = self._used
            self._used = end = first + -(-size // _ALIGNED) * _ALIGNED
        if end > len(self._bytes):
            self._ring.needs(end)
            return FRESH.empty(count, dtype)
        # Not slices of one tensor: these would tell autograd of each other's changes.
        return torch.from_numpy(self._bytes[first : first + size]).view(dtype)
