"""Contestants in processes of their own, which take turns while all others sleep.

In one process a contestant finds the other's memory, threads and caches; side by side they would
share the cores. So each has its own interpreter, waits for a line on a pipe, does one step, and
answers with its seconds.

    python -m benchmarks.turns module:name '{"images": 10}'    # one contestant; one turn a line
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from benchmarks.isolated import ROOT, TIMEOUT_S, BenchmarkError, last_line
from benchmarks.ratios import take_turns

# The last contestant's OpenMP threads look for work for a few milliseconds before they sleep.
REST_S = 0.05


@dataclass(frozen=True)
class Entry:
    """Who takes part: `module:name(**arguments)` makes a function that does a turn.

    A turn returns its seconds; `per` is what they are divided by, such as the images of a step.
    """

    function: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    per: float = 1.0


@contextlib.contextmanager
def contestant(entry: Entry, threads: int) -> Iterator[Callable[[], float]]:
    """A process that stands ready; each call wakes it for a turn, and returns what that took.

    Raises BenchmarkError, with what it said last, when it fails or is not heard of.
    """
    command = [sys.executable, "-m", "benchmarks.turns", entry.function]
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(
            [*command, json.dumps(entry.arguments)],
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": str(threads)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            bufsize=0,
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None

        def answer() -> Any:
            if not select.select([process.stdout], [], [], TIMEOUT_S)[0]:
                raise BenchmarkError(f"{entry.function}: no answer in {TIMEOUT_S:g} s")
            if line := process.stdout.readline():
                return json.loads(line)
            status = process.wait()
            errors.seek(0)
            said = last_line(errors.read().decode(errors="replace"), status)
            raise BenchmarkError(f"{entry.function}: {said}")

        def turn() -> float:
            time.sleep(REST_S)
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(b"\n")
            return float(answer()) / entry.per

        try:
            answer()
            yield turn
        finally:
            process.kill()


def compete(
    entries: Mapping[str, Entry], rounds: int, threads: int, warmup: int = 1
) -> dict[str, list[float]]:
    """Seconds of each entry in each round, per what it names; warm-up rounds left out.

    Raises BenchmarkError if one of them fails.
    """
    with contextlib.ExitStack() as stack:
        turns = {
            name: stack.enter_context(contestant(entry, threads)) for name, entry in entries.items()
        }
        return take_turns(turns, rounds, warmup)


def failing(entry: Entry, threads: int) -> str | None:
    """Why the entry cannot take part, such as a package that is not installed; None if it can."""
    try:
        compete({"it": entry}, rounds=1, threads=threads, warmup=0)
    except BenchmarkError as error:
        return str(error)
    return None


def those_that_run(entries: Mapping[str, Entry], threads: int) -> dict[str, Entry]:
    """The entries that can take part; of each other one a line says why not."""
    running = {}
    for name, entry in entries.items():
        if why := failing(entry, threads):
            print(f"{name} not measured: {why}")
        else:
            running[name] = entry
    return running


def fastest(entries: Sequence[Entry], rounds: int, threads: int) -> Entry:
    """The entry with the smallest median, each tried alone.

    One that fails, as for want of memory, loses. Raises BenchmarkError if all do.
    """
    found: list[tuple[float, Entry]] = []
    errors = []
    for entry in entries:
        try:
            seconds = compete({"it": entry}, rounds, threads)["it"]
            found.append((median(seconds), entry))
        except BenchmarkError as error:
            errors.append(error)
    if not found:
        raise errors[-1]
    return min(found, key=lambda one: one[0])[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("function", help="module:name")
    parser.add_argument("arguments", type=json.loads, help="a JSON object")
    given = parser.parse_args()
    # What a library prints must not be taken for an answer.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        module, _, name = given.function.partition(":")
        turn = getattr(importlib.import_module(module), name)(**given.arguments)
        print(json.dumps("ready"), file=answers, flush=True)
        for _ in iter(sys.stdin.readline, ""):
            print(json.dumps(turn()), file=answers, flush=True)


if __name__ == "__main__":
    main()
