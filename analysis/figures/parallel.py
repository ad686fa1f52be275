"""Independent jobs on the cores there are, in processes forked from this one.

Forked processes see what has been loaded, so only what the jobs return has to travel.
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
"""Processes at most: the machine may be a login node, which others use too."""


def usable_cores() -> int:
    """How many processes may work at once; 1 where a fork is not safe, or not allowed."""
    # macOS can fork, but has libraries that do not survive it.
    if sys.platform != "linux" or multiprocessing.current_process().daemon:
        return 1
    return len(os.sched_getaffinity(0))


def run_in_parallel(jobs: Tasks[Result]) -> list[Result]:
    """What each job returns, in their order; an error of one is raised, and ends the others.

    Results and errors must pickle. Where there is one core, the jobs run here, one by one.
    """
    workers = max(1, min(len(jobs), usable_cores(), MAX_PROCESSES))
    mine, *others = (jobs[number::workers] for number in range(workers))
    with ExitStack() as stack:
        pipes = [stack.enter_context(_worker_process(share)) for share in others]
        done = [[job() for job in mine]]
        done += [_receive_results(pipe, share) for pipe, share in zip(pipes, others, strict=True)]
    return [done[number % workers][number // workers] for number in range(len(jobs))]


@contextmanager
def _worker_process(jobs: Tasks[Result]) -> Iterator[Connection]:
    """A process at work on `jobs`, and the pipe that its results will come through."""
    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_run_and_send, args=(jobs, sending), daemon=True)
    process.start()
    # Held by the helper alone, so that its end is the pipe's.
    sending.close()
    try:
        yield receiving
    finally:
        process.kill()
        process.join()
        receiving.close()


def _run_and_send(jobs: Tasks[Result], pipe: Connection) -> None:
    # An interrupt reaches both processes; the other one ends this.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    outcome: list[Result] | Exception
    try:
        outcome = [job() for job in jobs]
    except Exception as error:
        # Tracebacks do not travel.
        error.add_note(traceback.format_exc())
        outcome = error
    pipe.send(outcome)


def _receive_results(pipe: Connection, jobs: Tasks[Result]) -> list[Result]:
    try:
        outcome: list[Result] | Exception = pipe.recv()
    except EOFError:
        # The helper was killed, as where memory is short: then one at a time.
        return [job() for job in jobs]
    if isinstance(outcome, Exception):
        raise outcome
    return outcome
