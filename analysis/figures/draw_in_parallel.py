"""Runs independent tasks in processes that are forked from this one.

Forked processes share the loaded data, so only the tasks' results are sent between processes.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from typing import TypeVar

Result = TypeVar("Result")
Tasks = Sequence[Callable[[], Result]]

MAX_PROCESSES = 4
"""At most this many processes, because a login node has other users."""


def usable_cores() -> int:
    """How many cores this process may use; 1 where forking is not safe or not allowed."""
    # Some libraries of macOS crash after a fork.
    if sys.platform != "linux" or multiprocessing.current_process().daemon:
        return 1
    return len(os.sched_getaffinity(0))


def run_in_parallel(tasks: Tasks[Result]) -> list[Result]:
    """The results of all tasks, in order; raises the error of a task and stops the others.

    Results and errors must pickle. With one core the tasks run in this process.
    """
    workers = max(1, min(len(tasks), usable_cores(), MAX_PROCESSES))
    mine, *others = (tasks[number::workers] for number in range(workers))
    with ExitStack() as stack:
        pipes = [stack.enter_context(_worker_process(share)) for share in others]
        done = [[task() for task in mine]]
        done += [_receive_results(pipe, share) for pipe, share in zip(pipes, others, strict=True)]
    return [done[number % workers][number // workers] for number in range(len(tasks))]


@contextmanager
def _worker_process(tasks: Tasks[Result]) -> Iterator[Connection]:
    """Start a process that runs `tasks`; yields the pipe that its results come through."""
    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_run_and_send, args=(tasks, sending), daemon=True)
    process.start()
    # Only the worker holds the sending end, so that its death closes the pipe.
    sending.close()
    try:
        yield receiving
    finally:
        process.kill()
        process.join()
        receiving.close()


def _run_and_send(tasks: Tasks[Result], pipe: Connection) -> None:
    # Ctrl-C reaches both processes; the parent kills this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    outcome: list[Result] | Exception
    try:
        outcome = [task() for task in tasks]
    except Exception as error:
        # A pickled error has no traceback, so it is added as text.
        error.add_note(traceback.format_exc())
        outcome = error
    pipe.send(outcome)


def _receive_results(pipe: Connection, tasks: Tasks[Result]) -> list[Result]:
    try:
        outcome: list[Result] | Exception = pipe.recv()
    except EOFError:
        # The worker was killed, probably for lack of memory: run its tasks here.
        return [task() for task in tasks]
    if isinstance(outcome, Exception):
        raise outcome
    return outcome
