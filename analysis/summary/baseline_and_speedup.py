"""The baseline of a speedup, the bound of balanced stages, and what explains more than the bound.

A speedup above the bound can be real: one process may need more time for the same layers, for lack
of memory or cache. Then the layers' seconds show it; a speedup that they do not explain is invalid.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import pandas as pd

from analysis.load.comparable import (
    FREE_SETTINGS,
    differences_in_words,
    environment_key,
)
from analysis.load.run_data import RunData
from analysis.statistics.intervals import Interval
from analysis.summary.cell_measures import has_split_backward
from analysis.summary.configurations import Configuration, closest, same_value
from gnnhpc.core.errors import InputError
from gnnhpc.core.layout import Layout
from gnnhpc.core.schedules import bound, bound_with_split_backward


@dataclass(frozen=True, order=True)
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
            allowed = "LAYOUT or LAYOUT:MICROBATCHES"
            raise InputError("--baseline", None, repr(text), allowed) from None

    def __str__(self) -> str:
        """The text that `parse` reads."""
        return f"{self.layout}:{self.microbatches}" if self.microbatches > 1 else str(self.layout)


def find_baseline(
    row: Configuration, rows: Iterable[Configuration], requested: Baseline
) -> tuple[Configuration | None, str]:
    """The measured configuration that `row` is compared with; or None, and why it has none.

    Model, data, implementation, optimizer, precision, device and environment are equal, and so is
    the mini-batch of a replica or of all replicas. Of several candidates the one with the most
    other equal settings is taken: batch size, schedule, chunks.
    """
    place = {"layout": str(requested.layout), "microbatches": requested.microbatches}
    measured = (one for one in rows if one.phase == row.phase and one.step_times)
    candidates = closest(measured, row.settings | place, FREE_SETTINGS)
    reasons = [_why_not_comparable(row, one) for one in candidates]
    if "" in reasons:
        return candidates[reasons.index("")], ""
    return None, reasons[0] if reasons and row.step_times else ""


def _why_not_comparable(row: Configuration, other: Configuration) -> str:
    """Empty for two configurations that may be compared."""
    words = []
    if environment_key(row.environment) != environment_key(other.environment):
        words.append(differences_in_words(row.environment, other.environment))
    sizes = (one.settings["batch_size"] for one in (row, other))
    if not same_value(*sizes) and row.together != other.together:
        words.append(
            f"batch size {row.settings['batch_size']:g} a replica and {row.together:g} together, "
            f"{other.settings['batch_size']:g} and {other.together:g} in the baseline"
        )
    return "; ".join(words)


def shares_of_passes(row: Configuration) -> tuple[float, float, float] | None:
    """Seconds of forwards, gradients of inputs and gradients of weights, of a rank on average.

    None where one of them was not measured.
    """
    forwards, passes, weights = map(row.mean, ("forwards_s", "passes_s", "weights_s"))
    if forwards is None or passes is None or weights is None:
        return None
    shares = forwards, max(0.0, passes - forwards - weights), weights
    return shares if sum(shares) > 0.0 else None


def bound_of(row: Configuration) -> float | None:
    """The most that a row's speedup over one process can be, with balanced stages.

    With a split backward it follows from the measured seconds of forwards, gradients of inputs and
    gradients of weights; None where they are not known. An evaluation has forwards alone.
    """
    layout, schedule = row.layout, row.settings["schedule"]
    virtual = int(row.settings["virtual_stages"])
    pipeline = layout.replicas, layout.stages, row.microbatches
    if not has_split_backward(schedule, layout.stages):
        return bound(*pipeline, virtual)
    if row.phase == "train":
        shares = shares_of_passes(row)
        return bound_with_split_backward(schedule, *pipeline, shares, virtual) if shares else None
    # ZBV's last forward goes back through the second virtual stages of all ranks, one after the
    # other: a stage waits as long as with one virtual stage.
    return bound(*pipeline)


def limits_over(
    row: Configuration, base: Configuration | None, requested: Baseline
) -> tuple[float, float] | tuple[None, None]:
    """The bound of balanced stages over that of the baseline, and the highest credible speedup.

    No speedup is above the second without a reason in the seconds of its layers. The baseline is
    the one that was found, `base`, or else that was asked for, `requested`.
    """
    most = bound_of(row)
    layout, count = requested.layout, requested.microbatches
    of_base = bound_of(base) if base else bound(layout.replicas, layout.stages, count)
    if most is None or of_base is None:
        return None, None
    # With a split backward, or several virtual stages, unequal stages can wait less than balanced
    # ones, as where the later stages have most of the weights. Ranks that never wait are the limit.
    split = has_split_backward(row.settings["schedule"], row.layout.stages)
    unequal = (split and row.phase == "train") or row.settings["virtual_stages"] > 1
    return most / of_base, (row.layout.world_size if unequal else most) / of_base


def exceeds(interval: Interval, limit: float) -> bool:
    """Whether the whole interval lies above the limit; False for a value without an interval."""
    return interval.low is not None and interval.low > limit * (1.0 + 1e-9)


def explain_excess(
    speedup: Interval, limit: float, base: Configuration, row: Configuration, run: RunData
) -> tuple[bool, str]:
    """Whether the seconds of layers explain a speedup above `limit`, and a note."""
    head = f"speedup {speedup.value:.3f} is above the bound {limit:.3f}"
    both = pd.concat([_layer_seconds(base, run), _layer_seconds(row, run)], axis=1).dropna()
    alone, together = both.iloc[:, 0], both.iloc[:, 1]
    if not together.sum() > 0.0:
        return False, f"{head}, and no seconds a layer were recorded to explain it"
    cost_ratio = float(alone.sum() / together.sum())
    at_equal_cost = speedup.value / cost_ratio
    worst = str((alone - together).idxmax())
    layers = (
        f"one process pays {cost_ratio:.3f} times what the stages pay for the same layers "
        f"(most in {worst}: {(alone / together)[worst]:.2f} times)"
    )
    if at_equal_cost <= limit + (speedup.half_width or 0.0) / cost_ratio:
        return True, f"{head}: {layers}; at the stages' cost it is {at_equal_cost:.3f}"
    return False, f"{head}, which seconds a layer do not explain: {layers}"


def _layer_seconds(row: Configuration, run: RunData) -> pd.Series[float]:
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
    return replicas.groupby(level="group", observed=True).mean() / samples
