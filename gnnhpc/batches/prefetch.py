"""Threads that make the next mini-batches while this one is in use."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Made = TypeVar("Made")


@contextlib.contextmanager
def prefetched(
    make: Callable[[int], Made],
    steps: range,
    workers: int,
    begin: Callable[[], None] = lambda: None,
) -> Iterator[Iterator[Made]]:
    """What `make` gives of each step, in order; `workers` threads are one each ahead of its use.

    Each thread calls `begin` first. Without workers all is made when it is taken. What a thread
    raises is raised where its step is taken. At the end of the context the threads have ended.
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
