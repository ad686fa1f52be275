"""Cells whose stages computed at one time in one process, and were not timed one by one."""

from __future__ import annotations

from analysis.loading.run import Run


def timed_whole(run: Run) -> set[str]:
    """Of torchgpipe on several devices, whose records have no seconds of layers.

    Neither an ideal step follows from them nor what one stage waited for another.
    """
    cells = run.cells
    if cells.empty:
        return set()
    held = cells.loc[(cells["engine"] == "torchgpipe") & (cells["stages"] > 1), "cell"]
    return {str(cell) for cell in held} - {str(cell) for cell in run.groups["cell"].unique()}
