"""`python -m jobs.submission.supervisor` runs the cells of a local run that nobody waits for.

It is a process that outlives `submit`, and reads from stdin which cells to run.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict

from gnnhpc.core.errors import GnnhpcError, report_errors
from gnnhpc.core.python_path import search_path_for_children
from jobs.run.submission_records import process_start
from jobs.submission.local_cells import LocalCell, LocalRun, run_cells

GRACE_S = 30.0
"""How long a supervisor may take to stop its ranks."""
_POLL_S = 0.1


class Supervisor:
    """A started process that waits for its cells."""

    def __init__(self, process: subprocess.Popen[bytes], run: LocalRun) -> None:
        self._process, self._run = process, run
        self.pid = process.pid

    def begin(self) -> None:
        """Send the cells; without it the process ends when this one does."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asdict(self._run)).encode())
        self._process.stdin.close()


def start_supervisor(run: LocalRun) -> Supervisor:
    """Start a process that outlives this one. Raises GnnhpcError where the system refuses that."""
    log = run.paths.logs / f"supervisor-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
    try:
        log.parent.mkdir(exist_ok=True)
        with log.open("ab") as stream:
            process = subprocess.Popen(
                [sys.executable, "-m", "jobs.submission.supervisor"],
                stdin=subprocess.PIPE,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
                env=os.environ | search_path_for_children(),
            )
    except OSError as error:
        raise GnnhpcError(f"{log}: {error.strerror}, no cell was started") from None
    return Supervisor(process, run)


def stop_supervisors(pids: Iterable[int]) -> None:
    """Stop these processes, and wait while their ranks save, for at most half a minute."""
    stopped = set(pids)
    for pid in stopped:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_S
    while any(process_start(pid) is not None for pid in stopped):
        if time.monotonic() > deadline:
            break
        time.sleep(_POLL_S)


@report_errors
def main() -> int:
    """Run the cells that stdin has, as a supervisor."""
    text = sys.stdin.read()
    if not text:
        # The submitting process died before it had recorded the submission.
        return 1
    raw = json.loads(text)
    os.umask(0o022)
    run = LocalRun(**raw | {"cells": tuple(LocalCell(**cell) for cell in raw["cells"])})
    try:
        failed = run_cells(run)
    except KeyboardInterrupt:
        print("cancelled", flush=True)
        return 1
    print(f"{len(run.cells) - failed} done, {failed} failed", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
