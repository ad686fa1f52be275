"""Contestants that compute nothing, for the tests of how benchmarks take turns."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path


def waiting(folder: str, name: str, seconds: float) -> Callable[[], float]:
    """Notes at each turn who it is, in which process, and what the others are doing meanwhile."""
    Path(folder, name).write_text(str(os.getpid()))

    def turn() -> float:
        others = [path for path in Path(folder).iterdir() if path.name not in (name, "turns")]
        # The state of a process is R where it computes, S where it sleeps (proc(5)).
        stats = [Path(f"/proc/{path.read_text()}/stat").read_text() for path in others]
        states = "".join(sorted(stat.rpartition(")")[2].split()[0] for stat in stats))
        with Path(folder, "turns").open("a") as stream:
            stream.write(f"{name} {os.getpid()} {states}\n")
        print("Libraries print too; this is no answer.", flush=True)
        return seconds

    return turn


def broken(at_turn: int) -> Callable[[], float]:
    """Fails when it is made (turn 0), or at its first turn."""
    if at_turn == 0:
        raise ModuleNotFoundError("No module named 'peer'")
    return lambda: sys.exit("out of memory")


def parent(folder: str) -> Callable[[], float]:
    """Waits in its turn for a process of its own, which sleeps, and ends it when it ends."""
    child = subprocess.Popen(["sleep", "600"])
    Path(folder, "child").write_text(str(child.pid))

    def turn() -> float:
        try:
            return float(child.wait())
        finally:
            child.terminate()
            child.wait()

    return turn
