"""Threads make batches in advance: in order, not too many, and without leaving any behind."""

from __future__ import annotations

import threading
import time

import pytest

from gnnhpc.batches.prefetch import prefetched


def sampler_threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name.startswith("sampler")]


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_batches_come_in_order_whichever_thread_is_slow(workers: int) -> None:
    def make(step: int) -> int:
        time.sleep(0.002 if step % 3 == 0 else 0.0)
        return step * step

    with prefetched(make, range(5, 25), workers) as made:
        assert list(made) == [step * step for step in range(5, 25)]
    assert not sampler_threads()


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_no_more_are_made_than_workers_ahead(workers: int) -> None:
    begun: list[int] = []
    with prefetched(lambda step: begun.append(step) or step, range(100), workers) as made:
        for taken in range(10):
            assert next(made) == taken
            end = time.monotonic() + 60
            while len(begun) < taken + 1 + workers and time.monotonic() < end:
                time.sleep(0.001)
            # Time for one too many to begin.
            time.sleep(0.01)
            assert len(begun) == taken + 1 + workers
    assert not sampler_threads(), "leaving early ends the threads"


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_is_raised_where_its_batch_is_taken(workers: int) -> None:
    def make(step: int) -> int:
        if step == 2:
            raise ValueError("step 2 cannot be drawn")
        return step

    with prefetched(make, range(6), workers) as made:
        assert [next(made), next(made)] == [0, 1]
        with pytest.raises(ValueError, match="step 2 cannot be drawn"):
            next(made)
    assert not sampler_threads()
