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
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[1]
TIMEOUT_S = 900.0
"""The most seconds that a contestant takes to get ready, or for a turn."""
END_S = 10.0
"""Seconds that a contestant has to end, before it is asked to and before it is killed."""
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
    entries: Mapping[str, Entry],
    rounds: int,
    threads: int,
    warmup: int = 1,
    *,
    ours: Collection[str] = (),
    timeout_s: float = TIMEOUT_S,
) -> tuple[dict[str, list[Taken]], dict[str, str]]:
    """Let all contestants take turns, round after round; warm-up rounds are left out.

    They get ready together, which no turn measures. Returns what each measured in each round, and
    why others measured nothing: a contestant that fails takes no further part. There are no turns
    once all of `ours` have failed.
    """
    taken: dict[str, list[Taken]] = {name: [] for name in entries}
    missing: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        begun: dict[str, Started] = {}
        for name, entry in entries.items():
            try:
                fastest = _fastest(entry, threads, timeout_s)
            except BenchmarkError as error:
                missing[name] = str(error)
            else:
                begun[name] = stack.enter_context(
                    contextlib.closing(Started(fastest, threads, timeout_s))
                )
        for answer_of in (Started.ready, *[Started.turn] * (warmup + rounds)):
            for name in [name for name in begun if name not in missing]:
                try:
                    taken[name].append(answer_of(begun[name]))
                except BenchmarkError as error:
                    missing[name] = str(error)
            if ours and missing.keys() >= set(ours):
                break
    first = 1 + warmup
    return {name: all_[first:] for name, all_ in taken.items() if name not in missing}, missing


def _fastest(entry: Entry, threads: int, timeout_s: float) -> Contestant:
    """The variant with the smallest median of two turns, each tried alone.

    A variant that fails, as for want of memory, loses. Raises BenchmarkError if all do.
    """
    if isinstance(entry, Contestant):
        return entry
    seconds: list[tuple[float, Contestant]] = []
    errors = []
    for variant in entry:
        try:
            with contextlib.closing(Started(variant, threads, timeout_s)) as begun:
                begun.ready()
                begun.turn()
                seconds.append((median(begun.turn()["seconds"] for _ in range(2)), variant))
        except BenchmarkError as error:
            errors.append(error)
    if not seconds:
        raise errors[-1]
    return min(seconds, key=lambda one: one[0])[1]


class Started:
    """The process of a contestant, which gets ready at once and then waits for its turns.

    Methods that wait for an answer raise BenchmarkError if the process fails or does not answer.
    """

    def __init__(self, contestant: Contestant, threads: int, timeout_s: float) -> None:
        self.timeout_s, self._contestant = timeout_s, contestant
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115
        self._connection, theirs = multiprocessing.Pipe()
        with theirs:
            number = theirs.fileno()
            self._process = subprocess.Popen(
                [sys.executable, "-c", f"from {__name__} import serve; serve()", str(number)],
                cwd=ROOT,
                env=os.environ | {"OMP_NUM_THREADS": str(threads)},
                stdin=subprocess.DEVNULL,
                stdout=self._printed,
                stderr=self._printed,
                pass_fds=[number],
            )
        self._send((contestant.function, contestant.arguments))

    def ready(self) -> Taken:
        """Wait until the contestant is ready; its memory is all that it has measured."""
        return self._answer()

    def turn(self) -> Taken:
        """Have the contestant take a turn; what it measured."""
        time.sleep(REST_S)
        self._send("turn")
        measured = self._answer()
        return measured | {"seconds": measured["seconds"] / self._contestant.per}

    def close(self) -> None:
        """End the process: the contestant ends when the connection closes, with processes of its
        own, or where it is busy when it is asked to."""
        self._connection.close()
        for end in (self._process.terminate, self._process.kill):
            try:
                self._process.wait(END_S)
                break
            except subprocess.TimeoutExpired:
                end()
        self._process.wait()
        self._printed.close()

    def _send(self, message: Any) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._connection.send(message)

    def _answer(self) -> Taken:
        name = self._contestant.function
        if not self._connection.poll(self.timeout_s):
            # It must not compute beside the others.
            self.close()
            raise BenchmarkError(f"{name}: no answer in {self.timeout_s:g} s")
        with contextlib.suppress(EOFError, ConnectionResetError):
            answered: Taken = self._connection.recv()
            return answered
        status = self._process.wait()
        self._printed.seek(0)
        lines = self._printed.read().decode(errors="replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), f"status {status}")
        raise BenchmarkError(f"{name}: {last}")


@functools.cache
def _benchmark() -> Connection:
    """In the process of a contestant, the benchmark."""
    return Connection(int(sys.argv[1]))


def serve() -> None:
    """What the process of a contestant does."""
    # With it end the processes that a contestant waits for.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("asked to end"))
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
