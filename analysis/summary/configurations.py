"""Groups the cells that differ in repeat and seed alone: each group is a row of the summary."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, TypeVar

import pandas as pd
from numpy.typing import NDArray

from analysis.load.comparable import RUN_FOLDER, Environment
from analysis.load.run_data import RunData
from analysis.statistics.cut_warmup_steps import counted_step_times
from analysis.statistics.intervals import ONE_RUN, Interval, finite_values, interval_of_runs
from analysis.statistics.sample import Repeat, Sample
from analysis.summary.cell_measures import cell_phase_frame
from gnnhpc.core.layout import Layout


@dataclass(frozen=True)
class Configuration:
    """One set of settings in one phase, with what its cells that count measured."""

    settings: dict[str, Any]
    phase: str
    cells: pd.DataFrame
    """Rows of `RunData.cells`, with cells that failed or are invalid."""
    cell_phases: pd.DataFrame
    """One row a cell that counts, from `cell_phase_frame`."""
    step_times: list[NDArray[Any]]
    """Seconds of the steps that count, an array for each of these cells."""
    environment: Environment = field(default_factory=dict)
    """What these cells ran in, which is the same for all of them."""

    @property
    def used(self) -> pd.DataFrame:
        """Rows of `cells` that count and measured this phase, in the order of `step_times`."""
        return self.cells[self.cells["cell"].isin(self.cell_phases["cell"])]

    @cached_property
    def sample(self) -> Sample:
        """The step times, each run with the repeat that it is."""
        used = self.used
        repeats = [
            Repeat(int(seed), int(number), frozenset(str(hosts).split(";")), folder)
            for seed, number, hosts, folder in zip(
                used["seed"], used["repeat"], used["hosts"], used[RUN_FOLDER], strict=True
            )
        ]
        return Sample(self.step_times, repeats)

    @property
    def layout(self) -> Layout:
        return Layout.parse(self.settings["layout"])

    @property
    def microbatches(self) -> int:
        return int(self.settings["microbatches"])

    @property
    def together(self) -> float:
        """Samples a step over all replicas; nan for a graph, whose step is the whole graph."""
        return float(self.settings["batch_size"] or math.nan) * self.layout.replicas

    def mean(self, column: str) -> float | None:
        """Mean of a column of `cell_phases`: as of the step times, that of the runs' means.

        However many steps of each count: parts of a step would else not add up to it.
        """
        values = finite_values(self.cell_phases[column])
        return float(values.mean()) if values.size else None

    def interval(
        self, column: str, of: Callable[..., Interval] = interval_of_runs
    ) -> Interval | None:
        """Mean of a column of `cell_phases` with its interval over runs; None where it is empty."""
        values = finite_values(self.cell_phases[column])
        return of(values, self.sample.values.size) if values.size else None

    def speedup_over(self, other: Configuration, of: str = "mean") -> Interval | None:
        """These samples a second over the other's, by the mean or median step of each run.

        Of a sampled graph that is also a ratio of epochs, which are the same nodes. None where
        either measured nothing.
        """
        mine, theirs = self.mean("samples"), other.mean("samples")
        if mine is None or theirs is None:
            return None
        if other is self:
            several = self.sample.mean.low is not None
            return Interval(1.0, 1.0, 1.0) if several else Interval(1.0, None, None, ONE_RUN)
        speedup = other.sample.over(self.sample, mine / theirs, of)
        return speedup if math.isfinite(speedup.value) else None


class HasSettings(Protocol):
    """A row of a run or of a study."""

    @property
    def settings(self) -> Mapping[str, Any]: ...


Candidate = TypeVar("Candidate", bound=HasSettings)


def closest(
    rows: Iterable[Candidate], settings: Mapping[str, Any], free: Collection[str]
) -> list[Candidate]:
    """The rows that differ from these settings in free ones alone, those in the fewest first."""
    found = []
    for row in rows:
        differing = {k for k, v in settings.items() if not same_value(v, row.settings.get(k))}
        if differing <= set(free):
            found.append((len(differing), row))
    return [row for _, row in sorted(found, key=lambda one: one[0])]


def same_value(one: object, other: object) -> bool:
    """Equal, or both missing."""
    return bool(one == other) or bool(pd.isna(one) and pd.isna(other))  # type: ignore[call-overload]


def why_not_counted(cell: Mapping[Any, Any]) -> str:
    """Why a cell of `RunData.cells` is in no average."""
    if cell["status"] != "done":
        return str(cell["status"])
    apart, flags = cell["not_comparable"], cell["flags"].replace(";", ", ")
    return f"not comparable ({apart})" if apart else f"invalid ({flags})"


def make_configurations(run: RunData) -> list[Configuration]:
    """All configurations, by model and data as submitted, then by ranks, replicas, micro-batches
    and phase.
    """
    frame = cell_phase_frame(run)
    frame = frame[frame["n"] > 0]
    step_times, environments = counted_step_times(run.steps), run.environments
    keys = list(run.settings)
    rows = []
    for values, cells in run.cells.groupby(keys, dropna=False, sort=False):
        counted = cells.loc[cells["counts"], "cell"]
        for phase in ("train", "test") if cells["test_steps"].any() else ("train",):
            mine = frame[(frame["phase"] == phase) & frame["cell"].isin(counted)]
            names = [str(cell) for cell in mine["cell"]]
            times = [step_times[name, phase] for name in names]
            settings = dict(zip(keys, values, strict=True))
            environment = environments[names[0]] if names else {}
            rows.append(Configuration(settings, phase, cells, mine, times, environment))
    models, data = (list(run.cells[key].unique()) for key in ("model", "data"))

    def place(row: Configuration) -> tuple[int, ...]:
        study = models.index(row.settings["model"]), data.index(row.settings["data"])
        ranks = row.layout.world_size, row.layout.replicas
        return *study, *ranks, row.microbatches, row.phase == "test"

    return sorted(rows, key=place)
