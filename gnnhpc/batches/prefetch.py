"""Prefetching of mini-batches: threads that make the next ones, and buffers that hold them."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gnnhpc.kernels.sample_neighbors import FRESH, Memory

Made = TypeVar("Made")

_ALIGNED = 64
"""Bytes: each tensor begins at such a multiple, as torch's own do."""
_SPARE = 4
"""A slot that was too small grows by one in so many more than was asked for."""


@contextlib.contextmanager
def prefetched(
    make: Callable[[int], Made],
    steps: range,
    workers: int,
    begin: Callable[[], None] = lambda: None,
) -> Iterator[Iterator[Made]]:
    """What `make` returns for each step, in order; each of `workers` threads is one step ahead.

    Threads run whenever there is room. The loop takes one mini-batch a step and times the taking
    as `data_s`, so in steady state what making one costs beyond the step shows there. Between
    steps only records and listeners run: work in that time, which no step counts, is hidden, and
    after a longer pause such as an evaluation up to `workers` mini-batches are ready.

    Each thread calls `begin` first. Without workers a mini-batch is made when it is taken. An error
    of a thread is raised where its step is taken. The threads have ended when the context ends.
    """
    if not workers:
        yield map(make, steps)
        return
    with ThreadPoolExecutor(workers, "sampler", begin) as pool:
        try:
            yield _in_order(pool, make, steps, workers)
        finally:
            pool.shutdown(cancel_futures=True)


def _in_order(
    pool: ThreadPoolExecutor, make: Callable[[int], Made], steps: range, ahead: int
) -> Iterator[Made]:
    waiting: deque[Future[Made]] = deque(pool.submit(make, step) for step in steps[:ahead])
    for number in range(len(steps)):
        made = waiting.popleft().result()
        if number + ahead < len(steps):
            waiting.append(pool.submit(make, steps[number + ahead]))
        yield made


class Ring:
    """Buffers (`slots`) for mini-batches, which grow to the size needed; `pinned` ones serve a GPU.

    A slot is lent to one mini-batch and is free again once the last tensor in it is gone, whether
    the mini-batch, a layer's saved tensors or a view holds it. So no buffer is overwritten while it
    is in use. The slot that was freed last is lent first, so that slots beyond need take no memory.
    Where all are lent, a mini-batch gets fresh memory and does not wait. Any thread may ask.
    """

    def __init__(self, slots: int, *, pinned: bool = False) -> None:
        self._pinned = pinned
        # Without a lock: a finalizer runs in any thread, whatever that is in the middle of.
        self._free = deque(self._buffer(0) for _ in range(slots))
        self._needed = 0
        self._changing = threading.Lock()

    def lend(self) -> Memory:
        """Memory for one mini-batch."""
        try:
            buffer = self._free.pop()
        except IndexError:
            return FRESH
        needed = self._needed
        if needed > len(buffer):
            buffer = self._buffer(needed + needed // _SPARE)
        lent = buffer.numpy()
        # All tensors in it hold this array, and it is theirs alone.
        weakref.finalize(lent, self._free.append, buffer).atexit = False
        return _Lent(self, lent)

    def needs(self, size: int) -> None:
        """A mini-batch needed so many bytes."""
        with self._changing:
            self._needed = max(self._needed, size)

    def _buffer(self, size: int) -> Tensor:
        """uint8 [size]"""
        return torch.empty(size, dtype=torch.uint8, pin_memory=self._pinned)


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
        # They are no slices of one tensor, whose changes autograd would see in all of them.
        return torch.from_numpy(self._bytes[first : first + size]).view(dtype)
