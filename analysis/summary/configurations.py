"""Groups the cells that differ in repeat and seed alone: each group is a row of the summary."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.load.comparable import RUN_FOLDER, Environment
from analysis.load.run_data import RunData
from analysis.statistics.intervals import (
    ONE_RUN,
    Interval,
    finite_values,
    interval_of_runs,
    interval_of_shares,
)
from analysis.statistics.noise import counted_step_times
from analysis.statistics.sample import Repeat, Sample
from analysis.summary.cell_measures import cell_phase_frame
from analysis.summary.ideal_step import Shares, has_split_backward, shares_of
from analysis.summary.time_breakdown import StepSeconds
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
    def virtual_stages(self) -> int:
        """How many of them each rank holds."""
        return int(self.settings["virtual_stages"])

    @property
    def split_backward(self) -> bool:
        """Whether stages compute gradients of weights apart from those of inputs."""
        return has_split_backward(self.settings["schedule"], self.layout.stages)

    @property
    def shares(self) -> Shares | None:
        """Shares of a rank on average, where the backward is split."""
        means = [self.mean(name) for name in ("forwards_s", "passes_s", "weights_s")]
        forwards, passes, weights = (math.nan if mean is None else mean for mean in means)
        return shares_of(forwards, passes - forwards, weights)

    @property
    def weights_share(self) -> float | None:
        """The share of gradients of weights in the backward, where it is split."""
        if self.shares is None:
            return None
        _, of_inputs, weights = self.shares
        backward = of_inputs + weights
        return weights / backward if backward > 0.0 else None

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

    @property
    def efficiency(self) -> Interval | None:
        """Ideal over measured step time of the same cells, both medians over their steps."""
        ideal = self.cell_phases["ideal_step_s"].to_numpy(dtype=float)
        median = self.cell_phases["median_step_s"].to_numpy(dtype=float)
        known = np.isfinite(ideal)
        if not known.any():
            return None
        return interval_of_runs((ideal / median)[known], self.sample.values.size)

    @property
    def bubble(self) -> Interval | None:
        """The share of rank-time spent waiting, with what lies between spans; 0 of one rank."""
        shares = self.cell_phases["bubble"].to_numpy(dtype=float)
        if not np.isfinite(shares).any():
            return None
        return interval_of_shares(shares, self.sample.values.size)

    @property
    def samples_per_s(self) -> float | None:
        samples = self.mean("samples")
        return samples / self.sample.mean.value if samples is not None else None

    @property
    def seconds(self) -> StepSeconds | None:
        """Seconds of a step and its parts; None where stages were not timed one by one."""
        parts = [self.mean(name) for name in ("passes_s", "outside_s", "allreduce_s")]
        if None in parts or not self.step_times:
            return None
        parts.append(self.mean("recompute_s"))
        return StepSeconds(self.sample.mean.value, *(part or 0.0 for part in parts))

    @property
    def epoch(self) -> Interval | None:
        """Seconds of an epoch of a sampled graph; None for other cells."""
        seconds = self.cell_phases["epoch_s"].to_numpy(dtype=float)
        known = seconds[np.isfinite(seconds)]
        return interval_of_runs(known, self.sample.values.size) if known.size else None

    @property
    def epoch_from(self) -> str | None:
        """Whether whole epochs were measured in each run, or fewer steps stand for one."""
        if self.epoch is None:
            return None
        fewest = int(self.cell_phases["whole_epochs"].min())
        steps = int(self.used["steps_per_epoch"].max())
        if fewest:
            return f"measured, {fewest} whole epoch{'s' if fewest > 1 else ''} of {steps} steps"
        return f"extrapolated from {int(self.cell_phases['n'].min())} of {steps} steps"

    def speedup_over(self, other: Configuration, of: str = "mean") -> Interval | None:
        """These samples a second over the other's, by `mean` or `median` step times.

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
            rows.append(
                Configuration(
                    dict(zip(keys, values, strict=True)),
                    phase,
                    cells,
                    mine,
                    [step_times[name, phase] for name in names],
                    environments[names[0]] if names else {},
                )
            )
    models, data = (list(run.cells[key].unique()) for key in ("model", "data"))
    return sorted(
        rows,
        key=lambda row: (
            models.index(row.settings["model"]),
            data.index(row.settings["data"]),
            row.layout.world_size,
            row.layout.replicas,
            row.microbatches,
            row.phase == "test",
        ),
    )
