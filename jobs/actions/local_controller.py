"""`python local_controller.py FOLDER PID`: starts and watches one local cell's ranks.

It is submitit's own controller, but for what becomes of it where the process that started it, PID,
is killed and cannot stop it: its ranks would go on, and the next cell that is run on this machine
would be measured beside them.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import signal
import sys
from pathlib import Path

from submitit.local.local import Controller

_PR_SET_PDEATHSIG = 1
"""prctl(2): the signal that a process gets when its parent dies."""


def command(folder: Path) -> str:
    """What a shell of submitit's becomes instead of starting submitit's controller.

    By its path, as the run's own code comes first on the search path and may be older than this.
    """
    return f"exec {shlex.join([sys.executable, '-P', __file__, str(folder), str(os.getpid())])}"


def main() -> int:
    folder, starter = Path(sys.argv[1]), int(sys.argv[2])
    # The shell that submitit thinks its controller to be in is this process.
    os.environ["SUBMITIT_LOCAL_WITH_SHELL"] = ""
    controller = Controller(folder)
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != starter:
        return 1
    controller.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
