"""Contestants in processes of their own, which take turns while the others sleep.

Two contestants of one process would share memory, threads and caches; two that run at the same
time would share cores. So each has its own interpreter, waits for a line on a pipe, takes one turn,
and answers with what it measured.

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


@dataclass
class Outcome:
    """What each contestant measured in each round, and why others measured nothing."""

    taken: dict[str, list[Taken]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    chosen: dict[str, Contestant] = field(default_factory=dict)
    """The variant that competed."""


def compete(entries: Mapping[str, Entry], rounds: int, threads: int, warmup: int = 1) -> Outcome:
    """Let all contestants take turns, round after round; warm-up rounds are left out.

    A contestant that fails takes no further part.
    """
    outcome = Outcome()
    with contextlib.ExitStack() as stack:
        turns: dict[str, Callable[[], Taken]] = {}
        for name, entry in entries.items():
            try:
                outcome.chosen[name] = _fastest(entry, threads)
                turns[name] = stack.enter_context(started(outcome.chosen[name], threads))
            except BenchmarkError as error:
                outcome.missing[name] = str(error)
        for number in range(warmup + rounds):
            for name in [name for name in turns if name not in outcome.missing]:
                try:
                    measured = turns[name]()
                except BenchmarkError as error:
                    outcome.missing[name] = str(error)
                    continue
                if number >= warmup:
                    outcome.taken.setdefault(name, []).append(measured)
    for name in outcome.missing:
        outcome.taken.pop(name, None)
    return outcome


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
    command = [sys.executable, "-m", "benchmarks.turns", contestant.function]
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(
            [*command, json.dumps(contestant.arguments)],
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": str(threads)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            bufsize=0,
        ) as process,
    ):
        stdin, stdout = process.stdin, process.stdout
        assert stdin is not None
        assert stdout is not None

        def answer() -> Any:
            if not select.select([stdout], [], [], TIMEOUT_S)[0]:
                raise BenchmarkError(f"{contestant.function}: no answer in {TIMEOUT_S:g} s")
            if line := stdout.readline():
                return json.loads(line)
            status = process.wait()
            errors.seek(0)
            lines = errors.read().decode(errors="replace").split("\n")
            last = next((line for line in reversed(lines) if line.strip()), f"status {status}")
            raise BenchmarkError(f"{contestant.function}: {last}")

        def turn() -> Taken:
            time.sleep(REST_S)
            with contextlib.suppress(BrokenPipeError):
                stdin.write(b"\n")
            measured: Taken = answer()
            return measured | {"seconds": measured["seconds"] / contestant.per}

        try:
            answer()
            yield turn
        finally:
            # A contestant that has processes of its own ends them when its standard input closes.
            stdin.close()
            try:
                process.wait(10.0)
            except subprocess.TimeoutExpired:
                process.kill()


def peak_mib() -> float:
    """The most memory that this process has held (VmHWM of proc(5)), or its GPU if it uses one."""
    if (torch := sys.modules.get("torch")) is not None and torch.cuda.is_initialized():
        return float(torch.cuda.max_memory_allocated()) / 2**20
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) / 1024.0 for line in lines if line.startswith("VmHWM:"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("function", help="module:name")
    parser.add_argument("arguments", type=json.loads, help="a JSON object")
    given = parser.parse_args()
    # Libraries print to standard output; their lines go to standard error, not to the answers.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        module, _, name = given.function.partition(":")
        turn = getattr(importlib.import_module(module), name)(**given.arguments)
        print(json.dumps("ready"), file=answers, flush=True)
        for _ in iter(sys.stdin.readline, ""):
            measured = turn()
            if not isinstance(measured, dict):
                measured = {"seconds": measured}
            print(json.dumps({"peak_mib": peak_mib()} | measured), file=answers, flush=True)


if __name__ == "__main__":
    main()
