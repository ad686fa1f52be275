"""Processor time of threads that compute, told apart from that of others, whenever they begin."""

from __future__ import annotations

import _thread
import threading

from gnnhpc.engines.compute_threads import ComputeThreads
from tests.tools.computing import compute

COMPUTES_S, OTHER_S = 0.1, 1.5


def test_a_thread_that_begins_and_ends_within_a_step_is_counted_and_others_are_not() -> None:
    begin = threading.Event()

    def other() -> None:
        begin.wait()
        compute(OTHER_S)

    loader = threading.Thread(target=other)
    loader.start()
    threads = ComputeThreads(come_and_go=True)
    threads.look()
    before = threads.cpu_s()
    begin.set()

    def worker() -> None:
        compute(COMPUTES_S)
        threads.visit()

    for _ in range(2):
        short = threading.Thread(target=worker)
        short.start()
        short.join()
    used_s = threads.cpu_s() - before
    loader.join()
    assert 2 * COMPUTES_S <= used_s < 2 * COMPUTES_S + OTHER_S / 2
    use = threads.since_look()
    assert use.used == 1, "one at a time"
    threads.look()
    assert threads._visits == []


def test_a_thread_that_ends_late_is_not_counted_in_the_next_step() -> None:
    """Python knows it no more; to the system it is there, and looks like a worker of OpenMP's."""
    threads, visited, ends = ComputeThreads(come_and_go=True), threading.Event(), threading.Event()
    late: list[int] = []

    def worker() -> None:
        late.append(threading.get_native_id())
        threads.visit()
        visited.set()
        ends.wait()

    threads.look()
    _thread.start_new_thread(worker, ())
    visited.wait()
    threads.look()
    assert late[0] not in threads.ids
    ends.set()


def test_a_thread_that_ends_late_is_no_worker_of_the_next_one() -> None:
    threads, visited, ends = ComputeThreads(come_and_go=True), threading.Event(), threading.Event()

    def late() -> None:
        compute(COMPUTES_S)
        threads.visit()
        visited.set()
        ends.wait()

    def following() -> None:
        compute(COMPUTES_S)
        threads.visit()

    threads.look()
    _thread.start_new_thread(late, ())
    visited.wait()
    short = threading.Thread(target=following)
    short.start()
    short.join()
    # Of these two alone: OpenMP's workers of this process may still spin.
    assert [use.used for use in threads._visits] == [1, 1]
    ends.set()
