"""The baseline of a speedup, the bound of balanced stages, and what explains more than the bound.

A speedup above the bound can be real: one process may need more time for the same layers, for lack
of memory or cache. Then the layers' seconds show it; a speedup that they do not explain is invalid.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, cast

import pandas as pd

from analysis.load.comparable import (
    FREE_SETTINGS,
    LAYOUT_SETTINGS,
    differences_in_words,
    environment_key,
)
from analysis.load.run_data import RunData
from analysis.statistics.intervals import Interval
from analysis.summary.configurations import Configuration
from gnnhpc.core.errors import InputError
from gnnhpc.core.layout import Layout
from gnnhpc.core.schedules import ScheduleName, bound, bound_with_split_backward


@dataclass(frozen=True)
class Baseline:
    """A layout and its micro-batches."""

    layout: Layout = field(default_factory=Layout)
    microbatches: int = 1

    @classmethod
    def parse(cls, text: str) -> Baseline:
        """Read `seq` or `pp2:10`; raises InputError for another form."""
        name, _, count = text.partition(":")
        try:
            microbatches = int(count) if count else 1
            if microbatches < 1:
                raise ValueError
            return cls(Layout.parse(name), microbatches)
        except (ValueError, InputError):
            raise InputError(
                "--baseline",
                None,
                repr(text),
                "LAYOUT or LAYOUT:MICROBATCHES",
            ) from None

    def check_is_in(self, cells: pd.DataFrame) -> None:
        """Raises InputError where no cell has this layout and these micro-batches.

        The default baseline need not be there.
        """
        columns = cells[["replicas", "stages", "microbatches"]].drop_duplicates()
        there = sorted((Layout(dp, pp), m) for dp, pp, m in columns.itertuples(index=False))
        if self != Baseline() and (self.layout, self.microbatches) not in there:
            allowed = ", ".join(Baseline(layout, m).option for layout, m in there)
            raise InputError("--baseline", None, f"{self.option}, which no cell has", allowed)

    @classmethod
    def named(cls, name: str) -> Baseline:
        """The baseline with this name, as str() gives it."""
        layout, _, count = name.rpartition(" m")
        return cls(Layout.parse(layout), int(count))

    @property
    def option(self) -> str:
        """The text that `parse` reads."""
        return f"{self.layout}:{self.microbatches}"

    def __str__(self) -> str:
        return f"{self.layout} m{self.microbatches}"


def find_baseline(
    row: Configuration, rows: Iterable[Configuration], requested: Baseline
) -> tuple[Configuration | None, str]:
    """The measured configuration that `row` is compared with; or None, and why it has none.

    Model, data, implementation, optimizer, precision, device and environment are equal, and so is
    the mini-batch of a replica or of all replicas. Of several candidates the one with the most
    other equal settings is taken: batch size, schedule, chunks.
    """
    best: tuple[int, Configuration] | None = None
    nearest: tuple[int, str] | None = None
    for other in rows:
        if (
            other.phase != row.phase
            or other.layout != requested.layout
            or other.microbatches != requested.microbatches
            or not other.step_times
        ):
            continue
        differing = [key for key in row.settings if not _same_setting(row, other, key)]
        if any(key not in (*FREE_SETTINGS, *LAYOUT_SETTINGS) for key in differing):
            continue
        equal = len(FREE_SETTINGS) - len([key for key in differing if key in FREE_SETTINGS])
        why = _why_not_comparable(row, other)
        if why and (nearest is None or equal > nearest[0]):
            nearest = equal, why
        if not why and (best is None or equal > best[0]):
            best = equal, other
    if best is not None:
        return best[1], ""
    return None, nearest[1] if nearest is not None and row.step_times else ""


def same_batch_size(row: Configuration, other: Configuration) -> bool:
    """Whether each replica has as many samples a step; a graph is always given whole."""
    return _same_setting(row, other, "batch_size")


def _why_not_comparable(row: Configuration, other: Configuration) -> str:
    """Empty for two configurations that may be compared."""
    words = ""
    if environment_key(row.environment) != environment_key(other.environment):
        words = differences_in_words(row.environment, other.environment)
    if not same_batch_size(row, other) and row.together != other.together:
        mine = f"batch size {row.settings['batch_size']:g} a replica and {row.together:g} together"
        theirs = f"{other.settings['batch_size']:g} and {other.together:g} in the baseline"
        return "; ".join(filter(None, [words, f"{mine}, {theirs}"]))
    return words


def _same_setting(row: Configuration, other: Configuration, key: str) -> bool:
    value, other_value = row.settings[key], other.settings[key]
    return bool(value == other_value) or bool(pd.isna(value) and pd.isna(other_value))


def bound_of(row: Configuration) -> float | None:
    """The most that a row's speedup over one process can be, with balanced stages.

    With a split backward it follows from the measured seconds of forwards, gradients of inputs and
    gradients of weights; None where they are not known. An evaluation has forwards alone.
    """
    replicas, stages = row.layout.replicas, row.layout.stages
    if not row.split_backward:
        return bound(replicas, stages, row.microbatches, row.virtual_stages)
    if row.phase != "train":
        # ZBV's last forward goes back through the second virtual stages of all ranks, one after the
        # other: a stage waits as long as with one virtual stage.
        return bound(replicas, stages, row.microbatches)
    shares = row.shares
    if shares is None:
        return None
    schedule = cast(ScheduleName, row.settings["schedule"])
    return bound_with_split_backward(
        schedule, replicas, stages, row.microbatches, shares, row.virtual_stages
    )


def balanced_bubble(row: Configuration) -> float | None:
    """The share of rank-time that balanced stages wait."""
    most = bound_of(row)
    return None if most is None else 1.0 - most / row.layout.world_size


class Limits(NamedTuple):
    """Limits of a speedup over a baseline."""

    bound: float | None
    """That of balanced stages over the baseline's."""
    credible: float | None
    """No speedup is above it without a reason in the seconds of its layers."""


def limits_over(row: Configuration, base: Configuration | None, requested: Baseline) -> Limits:
    """The limits over the baseline that was found, `base`, or else that was asked for,
    `requested`."""
    most = bound_of(row)
    if base is not None:
        of_base = bound_of(base)
    else:
        of_base = bound(requested.layout.replicas, requested.layout.stages, requested.microbatches)
    if most is None or of_base is None:
        return Limits(None, None)
    # With a split backward, or several virtual stages, unequal stages can wait less than balanced
    # ones, as where the later stages have most of the weights. Ranks that never wait are the limit.
    unequal = row.split_backward and row.phase == "train"
    credible = row.layout.world_size if unequal or row.virtual_stages > 1 else most
    return Limits(most / of_base, credible / of_base)


def exceeds(interval: Interval, limit: float) -> bool:
    """Whether the whole interval lies above the limit; False for a value without an interval."""
    return interval.low is not None and interval.low > limit * (1.0 + 1e-9)


class Excess(NamedTuple):
    """Whether the seconds of layers explain a speedup above its bound, with a note."""

    explained: bool
    note: str


def explain_excess(
    speedup: Interval, limit: float, base: Configuration, row: Configuration, run: RunData
) -> Excess:
    """Judge a speedup of `row` over `base` above `limit` by the seconds of single layers."""
    head = f"speedup {speedup.value:.3f} is above the bound {limit:.3f}"
    silent = _stages_without_backward(row, run)
    if silent:
        why = f"stages {silent} ran no backward, so gradients did not cross stages"
        return Excess(False, f"{head}: {why}")
    alone, together = _layer_seconds(base, run), _layer_seconds(row, run)
    shared = [group for group in alone if group in together]
    total = sum(together[group] for group in shared)
    if not shared or total <= 0.0:
        return Excess(False, f"{head}, and no seconds a layer were recorded to explain it")
    cost_ratio = sum(alone[group] for group in shared) / total
    at_equal_cost = speedup.value / cost_ratio
    worst = max(shared, key=lambda group: alone[group] - together[group])
    times = alone[worst] / together[worst] if together[worst] > 0.0 else float("inf")
    layers = (
        f"one process pays {cost_ratio:.3f} times what the stages pay for the same layers "
        f"(most in {worst}: {times:.2f} times)"
    )
    margin = (speedup.half_width or 0.0) / cost_ratio
    if at_equal_cost <= limit + margin:
        return Excess(True, f"{head}: {layers}; at the stages' cost it is {at_equal_cost:.3f}")
    return Excess(False, f"{head}, which seconds a layer do not explain: {layers}")


def _layer_seconds(row: Configuration, run: RunData) -> dict[str, float]:
    """Forward plus backward seconds a sample of one replica, by group of layers.

    Medians over profiled steps; a group that is cut between stages is added up, and replicas and
    repeats are averaged.
    """
    times = run.layer_times[run.layer_times["cell"].isin(row.cell_phases["cell"])]
    times = times[times["phase"] == row.phase]
    keys = ["group", "cell", "replica", "rank"]
    medians = times.groupby(keys, observed=True)[["forward_s", "backward_s"]].median()
    replicas = medians.sum(axis=1).groupby(level=keys[:3], observed=True).sum()
    samples = (row.mean("samples") or 1.0) / row.layout.replicas
    means = replicas.groupby(level="group", observed=True).mean() / samples
    return {str(group): float(seconds) for group, seconds in means.items()}


def _stages_without_backward(row: Configuration, run: RunData) -> list[int]:
    """Stages without backward seconds, or without gradient where others have one."""
    if row.phase != "train":
        return []
    ranks = run.ranks[run.ranks["cell"].isin(row.cell_phases["cell"])]
    ranks = ranks[(ranks["phase"] == "train") & ranks["backward_s"].notna()]
    stages = ranks.groupby("stage")[["backward_s", "grad_norm"]].median()
    idle = ~(stages["backward_s"] > 0.0)
    if (stages["grad_norm"] > 0.0).any():
        idle |= stages["grad_norm"] == 0.0
    return [int(stage) for stage in stages.index[idle]]
