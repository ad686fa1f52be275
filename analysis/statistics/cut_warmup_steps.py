"""Marks the steps that count, and measures the machine's noise, for each cell and phase."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.statistics.find_warmup_end import detect_warmup, drift, mark_outliers

PHASE_COLUMNS = [
    *("cell", "phase", "n", "warmup_dropped", "profiled_dropped", "outliers", "drift"),
]


def mark_steps(steps: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The steps, numbered from 0, with three marks; and one row a cell and phase.

    `kept` steps count in averages: they are neither profiled nor warm-up, which the run marks or
    the series of its unprofiled steps shows. `warmup_dropped` and `profiled_dropped` count the
    others, and add up with `n` to the recorded steps. `outlier` marks kept steps and drops none.
    `uneven` steps have fewer samples than others, as the last of an epoch; they count, and are not
    used to find warm-up, outliers or drift.
    """
    seconds, samples = steps["step_s"].to_numpy(), steps["samples"].to_numpy()
    warm = steps["warmup"].to_numpy().astype(bool)
    profiled = steps["profiled"].to_numpy().astype(bool)
    kept = ~(warm | profiled)
    outlier, uneven = np.zeros((2, len(steps)), bool)
    rows: list[tuple[Any, ...]] = []
    for (cell, phase), mine in steps.groupby(["cell", "phase"], observed=True):
        part = mine.index.to_numpy()
        uneven[part] = samples[part] < samples[part].max()
        even = part[kept[part] & ~uneven[part]]
        slow = detect_warmup(seconds[even])
        if slow:
            kept[part[part < even[slow]]] = False
            even = even[slow:]
        outlier[even] = mark_outliers(seconds[even])
        dropped_profiled = int((profiled[part] & ~warm[part]).sum())
        n = int(kept[part].sum())
        counts = n, len(part) - n - dropped_profiled, dropped_profiled, int(outlier[part].sum())
        rows.append((cell, phase, *counts, drift(seconds[even])))
    marked = steps.assign(kept=kept, outlier=outlier, uneven=uneven)
    return marked, pd.DataFrame(rows, columns=PHASE_COLUMNS)


def add_noise_columns(phases: pd.DataFrame, ranks: pd.DataFrame) -> pd.DataFrame:
    """`phases` with two averages over ranks and steps that are neither warm-up nor profiled.

    `cpu_share` is processor seconds of a rank's process over wall seconds, which is at most the
    rank's threads; `steal_share` is seconds that the host took over wall seconds. Missing where the
    system does not report them.
    """
    counted = ranks[~(ranks["warmup"] | ranks["profiled"]).to_numpy().astype(bool)]
    sums = counted.groupby(["cell", "phase"], observed=True)[["cpu_s", "steal_s", "wall_s"]]
    seconds = sums.sum(min_count=1)
    wall = seconds["wall_s"].where(seconds["wall_s"] > 0.0)
    shares = {"cpu_share": seconds["cpu_s"] / wall, "steal_share": seconds["steal_s"] / wall}
    return phases.merge(pd.DataFrame(shares).reset_index(), on=["cell", "phase"], how="left")


def counted_step_times(steps: pd.DataFrame) -> dict[tuple[str, str], NDArray[np.float64]]:
    """(cell, phase) -> seconds of its kept steps, in order; only where there are any."""
    kept = steps[steps["kept"]].groupby(["cell", "phase"], observed=True)["step_s"]
    return {(str(cell), str(phase)): mine.to_numpy() for (cell, phase), mine in kept}
