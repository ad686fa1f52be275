"""`python -m jobs.actions.supervise RUN`: runs the cells read from stdin; started by submit."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from gnnhpc.core.errors import report_errors
from gnnhpc.records.run_paths import RunPaths
from jobs.actions.local_cells import LocalCell, LocalLimits
from jobs.actions.local_executor import run_local_cells
from jobs.actions.local_progress import ProgressLines


@report_errors
def main() -> int:
    text = sys.stdin.read()
    if not text:
        # The submitting process died before it had recorded the submission.
        return 1
    message = json.loads(text)
    os.umask(0o022)
    cells = [LocalCell(**cell) for cell in message["cells"]]
    try:
        ended = run_local_cells(
            RunPaths(Path(sys.argv[1])), cells, LocalLimits(**message["limits"]), ProgressLines()
        )
    except KeyboardInterrupt:
        print("cancelled", flush=True)
        return 1
    failed = sum(not one.done for one in ended)
    print(f"{len(ended) - failed} done, {failed} failed", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
