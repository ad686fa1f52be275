"""Progress of a local run: a bar on a terminal, plain lines in a log."""

from __future__ import annotations

import sys

from jobs.actions.local_cells import EndedCell, LocalCell, ProgressListener


def progress_listener() -> ProgressListener:
    """A bar if stdout is a terminal, else plain lines."""
    return ProgressBar() if sys.stdout.isatty() else ProgressLines()


class ProgressLines:
    """One line when a cell starts and one when it ends, for logs."""

    def __init__(self) -> None:
        self._total = 0
        self._ended = 0

    def expect(self, total: int) -> None:
        self._total = total

    def started(self, cell: LocalCell) -> None:
        print(f"{cell.array} {cell.index}: {cell.cell} started", flush=True)

    def ended(self, ended: EndedCell) -> None:
        self._ended += 1
        count, cell = f"[{self._ended}/{self._total}]", ended.cell
        print(f"{count} {cell.array} {cell.index}: {ended.line}, {ended.seconds:.1f} s", flush=True)

    def finish(self) -> None:
        """Prints nothing: the caller prints how many cells ended in which way."""


class ProgressBar:
    """Ended cells as lines, the running one beside a bar."""

    def __init__(self) -> None:
        # Imported here: a supervisor without a terminal needs none of it.
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
        )

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
        self._progress.update(self._bar, total=total)
        self._progress.start()

    def started(self, cell: LocalCell) -> None:
        self._progress.update(self._bar, description=f"{cell.array} {cell.index}")

    def ended(self, ended: EndedCell) -> None:
        cell = ended.cell
        colour = "green" if ended.done else "red"
        line = f"{cell.array} {cell.index}: {ended.line}".replace("[", "\\[")
        self._progress.console.print(f"[{colour}]{line}[/], {ended.seconds:.1f} s")
        self._progress.advance(self._bar)

    def finish(self) -> None:
        self._progress.stop()


class NoProgress:
    """Prints nothing; for callers of the library."""

    def expect(self, total: int) -> None: ...

    def started(self, cell: LocalCell) -> None: ...

    def ended(self, ended: EndedCell) -> None: ...

    def finish(self) -> None: ...
