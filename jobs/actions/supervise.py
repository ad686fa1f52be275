"""`python -m jobs.actions.supervise RUN`: runs the cells it is told on stdin; started by submit."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from gnnhpc.records.paths import RunPaths
from jobs.actions.local_executor import EndedCell, LocalCell, LocalLimits, run_local_cells


class ProgressLines:
    """One line when a cell starts and one when it ends, for logs."""

    def __init__(self) -> None:
        self._total = 0
        self._ended = 0

    def expect(self, total: int) -> None:
        """How many cells are to come."""
        self._total = total

    def started(self, cell: LocalCell) -> None:
        """A cell's ranks are on their way."""
        print(f"{cell.array} {cell.index}: {cell.cell} started", flush=True)

    def ended(self, ended: EndedCell) -> None:
        """A cell's ranks have ended."""
        self._ended += 1
        cell = ended.cell
        count = f"[{self._ended}/{self._total}]"
        print(f"{count} {cell.array} {cell.index}: {ended.line}, {ended.seconds:.1f} s", flush=True)

    def finish(self) -> None:
        """The caller sums up."""


def main() -> int:
    text = sys.stdin.read()
    if not text:
        # The submitting process died before it had noted this one.
        return 1
    order = json.loads(text)
    os.umask(0o022)
    cells = [LocalCell(**cell) for cell in order["cells"]]
    try:
        ended = run_local_cells(
            RunPaths(Path(sys.argv[1])), cells, LocalLimits(**order["limits"]), ProgressLines()
        )
    except KeyboardInterrupt:
        print("cancelled", flush=True)
        return 1
    failed = sum(not one.done for one in ended)
    print(f"{len(ended) - failed} done, {failed} failed", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
