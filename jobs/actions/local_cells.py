"""What the local executor is given and what it tells: cells, limits, how cells ended."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Protocol

from gnnhpc.spec.manifest import Cell
from jobs.cluster.site import Site

_WEEK_MIN = 7 * 24 * 60


@dataclass(frozen=True)
class LocalCell:
    """One cell to run on this machine."""

    array: str
    index: int
    cell: str
    """The cell's id."""
    ranks: int
    gpu: bool

    @classmethod
    def from_cell(cls, cell: Cell) -> LocalCell:
        experiment = cell.experiment
        gpu = experiment.device == "gpu"
        return cls(cell.array, cell.index, cell.id, experiment.rank_map.processes, gpu)


@dataclass(frozen=True)
class LocalLimits:
    """How much of this machine local cells may use, and for how long."""

    threads: int | None
    """Threads a rank; None leaves them to $GNNHPC_THREADS."""
    time_min: int
    """Time limit of one cell, minutes; a week unless the site sets one."""
    signal_s: int
    """Seconds before the time limit at which ranks are told to save and stop."""
    parallel: int
    """Cells that run at once."""

    @classmethod
    def from_site(cls, site: Site) -> LocalLimits:
        given = site.model_fields_set
        return cls(
            threads=None
            if "cpus_per_task" not in given and os.environ.get("GNNHPC_THREADS")
            else site.cpus_per_task,
            time_min=site.time_min if "time" in given else _WEEK_MIN,
            signal_s=site.signal,
            parallel=site.max_parallel or 1,
        )


@dataclass(frozen=True)
class EndedCell:
    """How one local cell ended."""

    cell: LocalCell
    done: bool
    line: str
    """Status, cause and flags in one line."""
    seconds: float


class ProgressListener(Protocol):
    """Is called as the cells of a local run start and end."""

    def expect(self, total: int) -> None:
        """Called once, before the first cell, with the number of cells."""

    def started(self, cell: LocalCell) -> None:
        """Called when a cell's ranks have been started."""

    def ended(self, ended: EndedCell) -> None:
        """Called when a cell's ranks have ended."""

    def finish(self) -> None:
        """Called once, after the last cell or an interrupt."""
