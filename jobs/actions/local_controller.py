"""`python local_controller.py FOLDER PID LOCK`: starts and watches one local cell's ranks.

It is submitit's own controller, but for what becomes of the ranks where the process that started
it, PID, or the controller itself is killed and cannot stop them: they would go on, and the next
cell that is run on this machine would be measured beside them.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shlex
import signal
import sys
from pathlib import Path

_RANK = "rank"
_PR_SET_PDEATHSIG = 1
"""prctl(2): the signal that a process gets when its parent dies."""


def command(folder: Path, lock: str) -> str:
    """What a shell of submitit's becomes instead of starting submitit's controller.

    By its path, as the run's own code comes first on the search path and may be older than this.
    """
    words = [sys.executable, "-P", __file__, str(folder), str(os.getpid()), lock]
    return f"exec {shlex.join(words)}"


def main() -> int:
    if sys.argv[1] == _RANK:
        if not _end_with_parent(int(sys.argv[2]), signal.SIGKILL):
            return 1
        os.execvp(sys.argv[3], sys.argv[3:])
    # Not for a rank, which becomes another program at once.
    from submitit.local.local import Controller

    folder, starter, lock = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    if lock:
        # Until this process ends; before it is asked whether the starter lives.
        fcntl.flock(os.open(lock, os.O_RDONLY), fcntl.LOCK_SH)
    # Ctrl-C is the starter's alone: it tells the ranks, and gives them time to save.
    os.setpgid(0, 0)
    # The shell that submitit thinks its controller to be in is this process.
    os.environ["SUBMITIT_LOCAL_WITH_SHELL"] = ""
    controller = Controller(folder)
    if not _end_with_parent(starter, signal.SIGTERM):
        return 1
    begins = [sys.executable, "-I", "-S", __file__, _RANK, str(os.getpid())]
    controller.command = [*begins, *controller.command]
    controller.run()
    return 0


def _end_with_parent(parent: int, number: int) -> bool:
    """Ask for this signal when the parent dies; False where it has died already."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number)
    return os.getppid() == parent


if __name__ == "__main__":
    sys.exit(main())
