"""Runs independent tasks in processes that are forked from this one.

Forked processes share the loaded data, so only the tasks' results are sent between processes.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

Result = TypeVar("Result")

MAX_PROCESSES = 4
"""At most this many processes, because a login node has other users."""
_tasks: list[Callable[[], Any]] = []
"""The tasks of the run in progress, which the forked processes find here."""


def usable_cores() -> int:
    """How many cores this process may use; 1 where forking is not safe or not allowed."""
    # Some libraries of macOS crash after a fork.
    if sys.platform != "linux" or multiprocessing.current_process().daemon:
        return 1
    return len(os.sched_getaffinity(0))


def run_in_parallel(tasks: Sequence[Callable[[], Result]]) -> list[Result]:
    """The results of all tasks, in order; raises the error of the first task that fails.

    Results and errors must pickle. With one core the tasks run in this process, and so they do
    after a process was killed, as by the system for lack of memory.
    """
    workers = min(len(tasks), usable_cores(), MAX_PROCESSES)
    if workers < 2:
        return [task() for task in tasks]
    _tasks[:] = tasks
    try:
        fork = multiprocessing.get_context("fork")
        with ProcessPoolExecutor(workers, mp_context=fork) as pool:
            return list(pool.map(_run, range(len(tasks))))
    except BrokenProcessPool:
        return [task() for task in tasks]
    finally:
        _tasks.clear()


def _run(number: int) -> Any:
    return _tasks[number]()
