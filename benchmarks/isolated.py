"""Work in processes of their own, so that one measurement's memory and threads are not another's.

The process that gives out the work stays small: Linux counts a parent's memory as the peak of a
child that it starts.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TIMEOUT_S = 900.0


class BenchmarkError(Exception):
    """Something that was to be measured failed; the message says what it said."""


@dataclass(frozen=True)
class Spent:
    """What a command took."""

    wall_s: float
    peak_mib: float


def call(function: str, **arguments: Any) -> Any:
    """`module:name(**arguments)` in a fresh interpreter; both ways through JSON.

    Raises BenchmarkError if it fails.
    """
    command = [sys.executable, "-m", "benchmarks.isolated", function, json.dumps(arguments)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    if done.returncode:
        raise BenchmarkError(f"{function}: {last_line(done.stderr, done.returncode)}")
    return json.loads(done.stdout.splitlines()[-1])


def timed(command: Sequence[str]) -> Spent:
    """Run `command` from the project's root; its seconds and the most memory it held.

    Raises BenchmarkError if it fails.
    """
    start = time.perf_counter()
    child = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    assert child.stderr is not None
    said = child.stderr.read()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    child.stderr.close()
    if child.returncode:
        raise BenchmarkError(f"{' '.join(command[1:6])}: {last_line(said, child.returncode)}")
    return Spent(time.perf_counter() - start, usage.ru_maxrss / 1024.0)


def peak_mib() -> float:
    """The most memory this process has held since its program began (proc(5), VmHWM)."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024.0
    raise BenchmarkError("/proc/self/status has no VmHWM")


def last_line(text: str, status: int) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else f"exit status {status}, without a word"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("function", help="module:name")
    parser.add_argument("arguments", type=json.loads, help="a JSON object")
    given = parser.parse_args()
    module, _, name = given.function.partition(":")
    value = getattr(importlib.import_module(module), name)(**given.arguments)
    print(json.dumps(value))


if __name__ == "__main__":
    main()
