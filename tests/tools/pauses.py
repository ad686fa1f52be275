"""Pauses of a process anywhere in its own code, as a busy machine or its host makes them.

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
from tests.tools.computing import compute

OURS = str(Path(gnnhpc.__file__).parent)


@dataclass(frozen=True)
class Pauses:
    """A plant: at one of `every` operations of gnnhpc, in any thread, it sleeps for up to
    `longest_s`, or computes where that is what it does: a host that takes a processor away may
    count it as used."""

    every: int = 10_000
    longest_s: float = 0.02
    seed: int = 0
    computes: bool = False

    def __call__(self) -> None:
        numbers = random.Random(f"{self.seed} {os.environ.get('RANK')}")
        left = numbers.randrange(self.every)
        pause = compute if self.computes else time.sleep

        def operation(_frame: FrameType, event: str, _: object) -> Any:
            nonlocal left
            if event == "opcode":
                left -= 1
                if left < 0:
                    left = numbers.randrange(2 * self.every)
                    pause(self.longest_s * numbers.random())
            return operation

        def call(frame: FrameType, _event: str, _: object) -> Any:
            if not frame.f_code.co_filename.startswith(OURS):
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            return operation

        threading.settrace(call)
        sys.settrace(call)
