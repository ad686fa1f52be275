"""What tests of watches share."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest


@pytest.fixture
def one_busy_processor() -> Iterator[None]:
    """This thread, and two processes that compute on the same processor."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    yield
    for process in busy:
        process.kill()
        process.wait()
    os.sched_setaffinity(0, allowed)
