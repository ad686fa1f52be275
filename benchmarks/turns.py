"""Contestants in processes of their own, which take turns while the others sleep.

Two contestants of one process would share memory, threads and caches; two that run at the same
time would share cores. So each has its own interpreter, waits for a word from the benchmark, takes
one turn, and answers with what it measured.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[1]
TIMEOUT_S = 900.0
REST_S = 0.05
"""Seconds before each turn, in which the OpenMP threads of the last contestant fall asleep."""
Taken = dict[str, float]
"""What a turn measured: `seconds`, `peak_mib` of its process, and others by name."""


class BenchmarkError(Exception):
    """A contestant failed; the message is the last line that it printed."""


@dataclass(frozen=True)
class Contestant:
    """`module:name(**arguments)` returns a function that takes a turn.

    A turn returns seconds, or a mapping of names to numbers; `per` divides its seconds, as by the
    images of a step.
    """

    function: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    per: float = 1.0


Entry = Contestant | Sequence[Contestant]
"""One contestant, or variants of it of which the fastest competes."""


def compete(
    entries: Mapping[str, Entry], rounds: int, threads: int, warmup: int = 1
) -> tuple[dict[str, list[Taken]], dict[str, str]]:
    """Let all contestants take turns, round after round; warm-up rounds are left out.

    Returns what each measured in each round, and why others measured nothing: a contestant that
    fails takes no further part.
    """
    taken: dict[str, list[Taken]] = {name: [] for name in entries}
    missing: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        turns: dict[str, Callable[[], Taken]] = {}
        for name, entry in entries.items():
            try:
                turns[name] = stack.enter_context(started(_fastest(entry, threads), threads))
            except BenchmarkError as error:
                missing[name] = str(error)
        for _ in range(warmup + rounds):
            for name in [name for name in turns if name not in missing]:
                try:
                    taken[name].append(turns[name]())
                except BenchmarkError as error:
                    missing[name] = str(error)
    return {name: all_[warmup:] for name, all_ in taken.items() if name not in missing}, missing


def _fastest(entry: Entry, threads: int) -> Contestant:
    """The variant with the smallest median of two turns, each tried alone.

    A variant that fails, as for want of memory, loses. Raises BenchmarkError if all do.
    """
    if isinstance(entry, Contestant):
        return entry
    seconds: list[tuple[float, Contestant]] = []
    errors = []
    for variant in entry:
        try:
            with started(variant, threads) as turn:
                turn()
                seconds.append((median(turn()["seconds"] for _ in range(2)), variant))
        except BenchmarkError as error:
            errors.append(error)
    if not seconds:
        raise errors[-1]
    return min(seconds, key=lambda one: one[0])[1]


@contextlib.contextmanager
def started(contestant: Contestant, threads: int) -> Iterator[Callable[[], Taken]]:
    """A process that waits for its turns; each call takes one and returns what it measured.

    Raises BenchmarkError if the process fails or does not answer.
    """
    connection, theirs = multiprocessing.Pipe()
    with connection, tempfile.TemporaryFile() as printed:
        with theirs:
            number = theirs.fileno()
            process = subprocess.Popen(
                [sys.executable, "-c", f"from {__name__} import serve; serve()", str(number)],
                cwd=ROOT,
                env=os.environ | {"OMP_NUM_THREADS": str(threads)},
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=printed,
                pass_fds=[number],
            )

        def ask(message: Any) -> Any:
            with contextlib.suppress(BrokenPipeError):
                connection.send(message)
            if not connection.poll(TIMEOUT_S):
                raise BenchmarkError(f"{contestant.function}: no answer in {TIMEOUT_S:g} s")
            with contextlib.suppress(EOFError, ConnectionResetError):
                return connection.recv()
            status = process.wait()
            printed.seek(0)
            lines = printed.read().decode(errors="replace").split("\n")
            last = next((line for line in reversed(lines) if line.strip()), f"status {status}")
            raise BenchmarkError(f"{contestant.function}: {last}")

        def turn() -> Taken:
            time.sleep(REST_S)
            measured: Taken = ask("turn")
            return measured | {"seconds": measured["seconds"] / contestant.per}

        try:
            ask((contestant.function, contestant.arguments))
            yield turn
        finally:
            # A contestant that has processes of its own ends them when the connection closes.
            connection.close()
            try:
                process.wait(10.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@functools.cache
def _benchmark() -> Connection:
    """In the process of a contestant, the benchmark."""
    return Connection(int(sys.argv[1]))


def serve() -> None:
    """What the process of a contestant does."""
    function, arguments = _benchmark().recv()
    module, _, name = function.partition(":")
    turn = getattr(importlib.import_module(module), name)(**arguments)
    answer({})
    while True:
        measured = turn()
        answer(measured if isinstance(measured, dict) else {"seconds": measured})


def answer(measured: Taken) -> None:
    """In the process of a contestant: answer, then wait for the next turn.

    The process ends here when the benchmark has ended.
    """
    _benchmark().send({"peak_mib": peak_mib()} | measured)
    try:
        _benchmark().recv()
    except EOFError:
        sys.exit()


def peak_mib() -> float:
    """The most memory that this process has held (VmHWM of proc(5)), or its GPU if it uses one."""
    if (torch := sys.modules.get("torch")) is not None and torch.cuda.is_initialized():
        return float(torch.cuda.max_memory_allocated()) / 2**20
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) / 1024.0 for line in lines if line.startswith("VmHWM:"))
