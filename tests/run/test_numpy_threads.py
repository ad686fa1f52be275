"""numpy's own threads: they would look for work while steps are timed."""

from __future__ import annotations

import os
import subprocess
import sys

CODE = """
import os, sys
import gnnhpc.cli
from gnnhpc.cli import keep_numpy_to_one_thread
assert "numpy" not in sys.modules
keep_numpy_to_one_thread()
import numpy
values = numpy.ones((600, 600))
values @ values
print(len(os.listdir("/proc/self/task")))
"""


def test_a_rank_started_by_hand_has_none() -> None:
    env = {name: v for name, v in os.environ.items() if not name.endswith("NUM_THREADS")}
    done = subprocess.run(
        [sys.executable, "-c", CODE], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout == "1\n"
