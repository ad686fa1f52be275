"""Progress of a local run: a bar on a terminal, plain lines in a log."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from jobs.actions.local_executor import EndedCell, LocalCell, ProgressListener
from jobs.actions.supervise import ProgressLines


def progress_listener() -> ProgressListener:
    """The report that suits where stdout goes."""
    return ProgressBar() if sys.stdout.isatty() else ProgressLines()


class ProgressBar:
    """Ended cells as lines, the running one beside a bar."""

    def __init__(self) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=Console(highlight=False),
            transient=True,
        )
        self._bar = self._progress.add_task("starting", total=None)

    def expect(self, total: int) -> None:
        """How many cells are to come."""
        self._progress.update(self._bar, total=total)
        self._progress.start()

    def started(self, cell: LocalCell) -> None:
        """A cell's ranks are on their way."""
        self._progress.update(self._bar, description=f"{cell.array} {cell.index}")

    def ended(self, ended: EndedCell) -> None:
        """A cell's ranks have ended."""
        cell = ended.cell
        colour = "green" if ended.done else "red"
        line = f"{cell.array} {cell.index}: {ended.line}".replace("[", "\\[")
        self._progress.console.print(f"[{colour}]{line}[/], {ended.seconds:.1f} s")
        self._progress.advance(self._bar)

    def finish(self) -> None:
        """No cell is left."""
        self._progress.stop()
