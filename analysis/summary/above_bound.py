"""Explains speedups above the bound of balanced stages by the seconds of single layers.

Such a speedup can be real: one process may need more time for the same layers, for lack of memory
or cache. Then the layers' seconds show it; if they do not, the speedup is not valid.
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from analysis.loading.run import Run
from analysis.stats.intervals import Interval
from analysis.summary.configurations import Configuration


@dataclass(frozen=True)
class BoundVerdict:
    """Whether layer seconds explain a speedup above its bound, with a note for the reader."""

    explained: bool
    note: str


def exceeds_bound(speedup: Interval, bound: float) -> bool:
    """Whether the whole interval lies above the bound; False of a value without one."""
    return speedup.low is not None and speedup.low > bound * (1.0 + 1e-9)


class LayerSeconds:
    """Seconds of groups of layers in a configuration, computed from a run's records on demand."""

    def __init__(self, run: Run) -> None:
        self._groups = run.groups
        self._ranks = run.ranks
        self._steps = run.steps

    def per_sample(self, row: Configuration) -> dict[str, float]:
        """Forward plus backward seconds a sample of one replica, by group of layers.

        Medians over the steps that count; the parts of a group that is cut between stages are
        added, and replicas and repeats are averaged.
        """
        counted = self._counted(row)
        kept = self._groups[self._groups["cell"].isin(row.cell_phases["cell"])]
        kept = kept.merge(counted, on=["cell", "phase", "step"])
        keys = ["group", "cell", "replica", "rank"]
        medians = kept.groupby(keys, observed=True)[["forward_s", "backward_s"]].median()
        replicas = medians.sum(axis=1).groupby(level=keys[:3], observed=True).sum()
        samples = (row.mean("samples") or 1.0) / row.layout.replicas
        means = replicas.groupby(level="group", observed=True).mean() / samples
        return {str(group): float(seconds) for group, seconds in means.items()}

    def stages_without_backward(self, row: Configuration) -> list[int]:
        """Stages without backward seconds, or without gradient where others have one."""
        if row.phase != "train":
            return []
        ranks = self._ranks[self._ranks["cell"].isin(row.cell_phases["cell"])]
        ranks = ranks.merge(self._counted(row), on=["cell", "phase", "step"])
        stages = ranks.groupby("stage")[["backward_s", "grad_norm"]].median()
        idle = ~(stages["backward_s"] > 0.0)
        if (stages["grad_norm"] > 0.0).any():
            idle |= stages["grad_norm"] == 0.0
        return [int(stage) for stage in stages.index[idle]]

    def _counted(self, row: Configuration) -> pd.DataFrame:
        steps = self._steps[self._steps["cell"].isin(row.cell_phases["cell"])]
        counted = steps[steps["kept"] & (steps["phase"] == row.phase)]
        return counted[["cell", "phase", "step"]]


def explain_excess(
    speedup: Interval,
    bound: float,
    sequential: dict[str, float],
    pipelined: dict[str, float],
    silent_stages: list[int],
) -> BoundVerdict:
    """Judge whether seconds a layer explain a speedup above its bound.

    `sequential` and `pipelined` are seconds a sample of each group of layers, in the sequential
    run and in one replica's stages; `silent_stages` are those without backward or gradient.
    """
    head = f"speedup {speedup.value:.3f} is above the bound {bound:.3f}"
    if silent_stages:
        return BoundVerdict(
            False,
            f"{head}: stages {silent_stages} ran no backward, so gradients did not cross stages",
        )
    shared = [group for group in sequential if group in pipelined]
    alone = sum(sequential[group] for group in shared)
    together = sum(pipelined[group] for group in shared)
    if not shared or together <= 0.0:
        return BoundVerdict(False, f"{head}, and no seconds a layer were recorded to explain it")
    cost_ratio = alone / together
    speedup_at_equal_cost = speedup.value / cost_ratio
    worst = max(shared, key=lambda group: sequential[group] - pipelined[group])
    layers = (
        f"one process pays {cost_ratio:.3f} times what the stages pay for the same layers "
        f"(most in {worst}: {_times(sequential[worst], pipelined[worst])})"
    )
    margin = (speedup.half_width or 0.0) / cost_ratio
    if speedup_at_equal_cost <= bound + margin:
        return BoundVerdict(
            True, f"{head}: {layers}; at the stages' cost it is {speedup_at_equal_cost:.3f}"
        )
    return BoundVerdict(False, f"{head}, which seconds a layer do not explain: {layers}")


def _times(alone: float, together: float) -> str:
    return f"{alone / together:.2f} times" if together > 0.0 else "nothing measured on its stage"
