"""The call that submitit pickles into a local job: run one cell of a manifest."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from runpy import run_path


@dataclass(frozen=True)
class CellTask:
    """Runs one cell as one rank, in the process submitit started.

    There is no `checkpoint` method, because submitit must not requeue: the worker handles signals
    itself. Slurm's jobs need no pickle; those that an earlier version submitted load one without an
    index, which is then $SLURM_ARRAY_TASK_ID.

    Pickles of pending jobs name this class and its fields: neither may be renamed. A later version
    pickles for the code that a run keeps, so a new field needs a default.
    """

    manifest: str
    array: str
    index: int | None = None
    live: bool = False
    """To run the checkout although the run keeps its code."""

    def __call__(self) -> int:
        """Run the cell; exit with the worker's status unless it is 0, so that Slurm records it."""
        os.umask(0o022)
        # Submitit ignores it, and until the worker has its own handlers there is nothing to save.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        # By its path, and before anything of gnnhpc: an import may find somebody else's.
        root = Path(__file__).parents[1]
        run_path(str(root / "gnnhpc/core/python_path.py"))["exit_if_mixed"]()
        from gnnhpc.core.errors import report_errors

        status = report_errors(self._run)()
        if status:
            raise SystemExit(status)
        return status

    def _run(self) -> int:
        # Before the rest is imported.
        from gnnhpc.records.code_snapshot import check_running_code

        check_running_code()
        from gnnhpc.run.worker import run_cell

        return run_cell(Path(self.manifest), self.array, self._index(), live=self.live)

    def _index(self) -> int:
        if self.index is not None:
            return self.index
        text = os.environ.get("SLURM_ARRAY_TASK_ID", "")
        if not text.isdigit():
            from gnnhpc.core.errors import InputError

            raise InputError("environment", "SLURM_ARRAY_TASK_ID", repr(text), "an array index")
        return int(text)
