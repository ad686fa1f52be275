"""Pauses of a process at random lines of its own code, as a busy machine or its host makes them.

A reading of a clock and the next may always be apart by so much; a check that takes two readings
for one accuses a healthy run.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import gnnhpc

OURS = str(Path(gnnhpc.__file__).parent)


@dataclass(frozen=True)
class Pauses:
    """A plant: before one of `every` lines of gnnhpc, in any thread, it sleeps for up to
    `longest_s`."""

    every: int = 2_000
    longest_s: float = 0.02
    seed: int = 0

    def __call__(self) -> None:
        numbers = random.Random(f"{self.seed} {os.environ.get('RANK')}")
        left = numbers.randrange(self.every)

        def line(_frame: FrameType, event: str, _: object) -> Any:
            nonlocal left
            if event == "line":
                left -= 1
                if left < 0:
                    left = numbers.randrange(2 * self.every)
                    time.sleep(self.longest_s * numbers.random())
            return line

        def call(frame: FrameType, _event: str, _: object) -> Any:
            return line if frame.f_code.co_filename.startswith(OURS) else None

        threading.settrace(call)
        sys.settrace(call)
