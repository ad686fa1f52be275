"""Keeps a processor busy for a given processor time."""

from __future__ import annotations

import time


def compute(seconds: float) -> None:
    """Use the calling thread's processor for so long, however busy the machine is."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass
