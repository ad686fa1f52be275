"""Contestants that compute nothing, for the tests of how benchmarks take turns."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path


def waiting(folder: str, name: str, seconds: float = 1.0) -> Callable[[], float]:
    """Notes at each turn who it is, in which process, and what the others are doing meanwhile."""
    Path(folder, name).write_text(str(os.getpid()))
    # Not an answer: libraries print too.
    print("a word to the world", flush=True)

    def turn() -> float:
        others = [path for path in Path(folder).iterdir() if path.name not in (name, "turns")]
        states = {_state(int(path.read_text())) for path in others}
        with Path(folder, "turns").open("a") as stream:
            stream.write(f"{name} {os.getpid()} {''.join(sorted(states))}\n")
        print("and another", flush=True)
        return seconds

    return turn


def broken(at_turn: int) -> Callable[[], float]:
    """Fails when it is made (turn 0), or at its first turn."""
    if at_turn == 0:
        raise ModuleNotFoundError("No module named 'peer'")

    def turn() -> float:
        sys.exit("out of memory")

    return turn


def _state(process: int) -> str:
    """The state of a process: R where it computes, S where it sleeps (proc(5))."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
