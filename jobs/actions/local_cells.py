"""What the local executor is given and what it tells: cells, limits, how cells ended."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Protocol

from gnnhpc.core.python_path import search_path_for_children
from gnnhpc.distributed.environment import SITE_VARIABLE
from gnnhpc.experiment.manifest import Cell
from gnnhpc.records.run_paths import RunPaths
from jobs.cluster.launch import Launch

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
        return cls(cell.array, cell.index, cell.id, experiment.process_layout.world_size, gpu)


@dataclass(frozen=True)
class LocalLimits:
    """How much of this machine local cells may use, for how long, and what their ranks run."""

    threads: int
    """Threads a rank."""
    time_min: int
    """Time limit of one cell, minutes; a week unless the site sets one."""
    signal_s: int
    """Seconds before the time limit at which ranks are told to save and stop."""
    parallel: int
    """Cells that run at once."""
    python: str
    """Path of the ranks' interpreter."""
    live: bool
    """Whether the ranks run the checkout although the run keeps its code."""
    environment: dict[str, str] = field(default_factory=dict)
    """Variables of the ranks: where they find our packages, and what is recorded of the site."""

    @classmethod
    def of_launch(cls, launch: Launch, paths: RunPaths) -> LocalLimits:
        site = launch.site
        parallel = site.max_parallel or 1
        # Of a site's settings these alone matter here.
        used = {"cpus_per_task": site.cpus_per_task, "parallel": parallel}
        search = search_path_for_children() if launch.live else search_path_for_children(paths.code)
        return cls(
            threads=site.cpus_per_task,
            time_min=site.time_min if "time" in site.model_fields_set else _WEEK_MIN,
            signal_s=site.signal,
            parallel=parallel,
            python=launch.python,
            live=launch.live,
            environment=search | {SITE_VARIABLE: json.dumps({"name": launch.site_name} | used)},
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
